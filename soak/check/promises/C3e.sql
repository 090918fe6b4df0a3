-- a member that others remove was silent for its lease
-- Its lease counts from when it wrote last, or was no longer alone: one that is alone rests.
with counted as (
	select l.*, (
		select max(s.time) from states s join members m on m.g = s.g and m.n = s.n and m.id = l.id
		where s.g = l.g and s.n < l.n and (s.member = l.id
			or not m.resting and exists (select 1 from members b where b.g = s.g and b.n = s.n - 1 and b.id = l.id and b.resting))) as since
	from removals l
	where l.by_whom not in ('', l.id) and exists (select 1 from states s where s.g = l.g and s.member = l.id and s.n < l.n)
)
select g.name || ', state ' || c.n || ': ' || c.by_whom || ' removed ' || c.id || ', whose lease of ' || c.lease / 1000 || ' ms had counted for ' || (c.time - c.since) / 1000 as finding
from counted c join groups g on g.g = c.g, limits x
where (c.resting or c.time - c.since < c.lease - x.drift) and not exists (select 1 from faults where name = 'clock-jump' or name = 'clock'); -- which is not as time goes
