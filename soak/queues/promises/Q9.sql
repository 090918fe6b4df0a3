-- nothing is given early, or while the queue is paused
with timely as (
	-- An operator who redrives an item does not heed its time; nor does one tell what was early by a clock that was off.
	select g.*
	from given g left join lines l on l.position = g.position and l.n = g.version - 1
	where (g.version = 0 or l.what <> 'R') and not exists (
		select 1 from given b, spans j
		where b.position = g.position and b.version <= g.version and j.what = 'jump' and j.since <= b.ended and b.at <= j.until
	)
)
select 'item ' || g.position || ' was given ' || ((i.due - g.ended) / 1000) || ' ms before its time' as finding
from timely g join items i on i.position = g.position
where not i.redriven and g.ended < i.due
union all
-- The time of a line is that of the call that ended the delivery: one before it may have had no answer.
select 'item ' || g.position || ' was given again ' || ((l.at + e.delay - g.ended) / 1000) || ' ms before its time'
from timely g
	join lines l on l.position = g.position and l.n = g.version - 1
	join ends e on e.position = g.position and e.version = l.version and e.kind = l.what and e.told = 'd'
where l.what in ('r', 'f') and g.ended < l.at + e.delay
	and not exists (select 1 from spans j where j.what = 'jump' and j.since <= g.ended and l.at <= j.until)
union all
select 'item ' || g.position || ' was given while the queue was paused'
from given g join spans p on p.what = 'pause' and g.at > p.since and g.ended < p.until
where not exists (select 1 from resumed r where r.session = g.session); -- it was reserved before
