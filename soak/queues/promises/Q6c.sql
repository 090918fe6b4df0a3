-- only what kills its process is buried for that
select 'item ' || i.position || ' is dead, and only sessions that it had nothing to do with ended' as finding
from items i, limits x
where i.dead and i.n <> x.poison and exists (select 1 from items k where k.n = x.poison)
	and not exists (select 1 from lines l where l.position = i.position and l.what not in ('e', 'u'));
