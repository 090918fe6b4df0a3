-- each delivery that did not finish its item has a line
select 'line ' || min(n) || ' of item ' || position || ' is of version ' || version as finding from lines where n <> version group by position
union all
select 'item ' || i.position || ' was completed at version ' || a.version || ', and has ' || i.lines || ' lines' from items i join accepted a on a.position = i.position where a.version > i.lines
union all
select 'item ' || i.position || ' was given at version ' || g.version || ', and has ' || i.lines || ' lines' from items i join given g on g.position = i.position where g.version > i.lines
union all
select 'item ' || i.position || ' is dead at version ' || i.version || ', and has ' || i.lines || ' lines'
from items i
where i.dead and i.version <> i.lines and not exists (select 1 from items h, limits x where h.stream = x.hot)
union all
select case
		when h.taken <> c.completed + c.back + c.cancelled + c.out
			then h.taken || ' deliveries are counted: ' || c.completed || ' of them completed their items, ' || (c.back + c.cancelled) || ' have lines, and ' || c.out || ' are out'
		when h.returned + h.buried <> c.back then (h.returned + h.buried) || ' deliveries are counted as given back or buried, and ' || c.back || ' have lines'
		else h.finished || ' items are counted as finished while no session had them, and ' || (c.ends - c.cancelled) || ' have lines'
	end
from head h, (
	select
		(select count(*) from lines where what in ('r', 'f', 'u', 'x', 'e')) as back,
		(select count(*) from lines where what in ('C', 'D', 'M')) as ends,
		(select count(*) from lines where what in ('C', 'D', 'M') and (session <> 0 or what = 'M')) as cancelled,
		(select count(*) from rows where state = 'o') as out,
		(select count(*) from items i, head h where i.state is null and not i.ended and i.position <= h.cursor) as completed
) c
where h.taken <> c.completed + c.back + c.cancelled + c.out or h.returned + h.buried <> c.back or h.finished <> c.ends - c.cancelled;
