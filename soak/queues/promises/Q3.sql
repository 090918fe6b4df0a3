-- of a key one after the other
with recursive released (position, at) as (
	-- An item that an operator ended keeps its place: what is behind it waits for what is before it.
	select c.position, min(c.at, c.cancelled) from closed c where c.before is null
	union all
	select c.position, min(c.at, max(c.cancelled, r.at)) from released r join closed c on c.before = r.position
)
select 'item ' || i.position || ' of ' || i.stream || ' was given at version ' || g.version || ' while item ' || i.before || ' before it was open' as finding
from items i join given g on g.position = i.position join released r on r.position = i.before, limits x
where g.ended + x.slack < r.at;
