-- what a dead process had is out again, and all is finished in the end
select 'item ' || i.position || ' of ' || i.stream || ' is left in state ' || i.state || ' at version ' || i.version || ', session ' || i.session || ', after ' || i.after as finding
from items i
where i.state is not null and not i.dead and not exists (select 1 from items h, limits x where h.stream = x.hot)
	-- but behind a dead item that holds its key
	and not (i.state in ('h', 'z') and exists (select 1 from items k where k.stream = i.stream and k.place < i.place and k.state = 'k'))
union all
select 'item ' || i.position || ' of ' || i.stream || ' is left beyond the cursor'
from items i
where i.state is null and not i.ended and not exists (select 1 from head h where i.position <= h.cursor) and not exists (select 1 from items h, limits x where h.stream = x.hot)
union all
select 'session ' || l.session || ', that was last heard of ' || ((l.at - h.last) / 1000) || ' ms before, had item ' || l.position || ' until then'
from lines l join heard h on h.session = l.session, limits x
where l.what = 'e' and l.at > h.last + h.lease + x.met -- but for the time in which nobody could meet it
	and l.at > h.last + h.lease + x.met + (select coalesce(sum(max(0, min(s.until, l.at) - max(s.since, h.last))), 0) from spans s)
union all
select 'in the end there was left: ' || coalesce(c.told ->> 'note', '') from calls c where c.call = 'drain' and c.answer <> 'ok';
