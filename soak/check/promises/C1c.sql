-- before a member stores the position of a slot, the members together have handled every message of it before that
select g.name || ', state ' || m.n || ', ' || s.name || ': slot ' || m.slot || ' is at ' || m.position || ' before all up to ' || u.global || ' was handled' as finding
from moves m join states s on s.g = m.g and s.n = m.n join groups g on g.g = m.g
	join upto u on u.rowid = (select v.rowid from upto v where v.g = m.g and v.slot = m.slot and v.global < m.position order by v.global desc limit 1)
where m.position > m.before and s.r is not null and u.of_slot >= s.at;
