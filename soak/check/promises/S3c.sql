-- the versions of a stream come one after the other, for writers and for all who see them
-- Of two steps of which one was over before the other began, the first is the earlier one by its version.
with moments as (
	select rowid as step, stream, at as moment, 0 as over, null as place from steps
	union all
	select rowid, stream, max(at, ended), 1, epoch << 48 | rank + 2 from steps
), latest as (
	select *, max(place) over (partition by stream order by moment, over rows unbounded preceding) as place_before from moments
)
select s.stream || ' was further when another was over than it was for ' || s.name || coalesce(', which wrote version ' || s.first, ', which saw version ' || s.last) as finding
from latest l join steps s on s.rowid = l.step
where not l.over and l.place_before > (s.epoch << 48 | s.rank + 2)
union all
select s.name || ' was known to be there before any process wrote it' from steps s where s.ended < s.at;
