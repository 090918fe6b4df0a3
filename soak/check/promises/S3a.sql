-- the positions of a stream are 0, 1, 2 ... without a gap
select stream || ' has position ' || position || coalesce(' after ' || before, ' first') as finding
from (select stream, position, lag(position) over (partition by stream order by position) as before from messages)
where position > coalesce(before, -1) + 1;
