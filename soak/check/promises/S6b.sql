-- global positions grow with the positions of a stream
select stream || '@' || position || ' has global position ' || global || ', and the one before ' || before as finding
from (select stream, position, global, id, lag(global) over w as before, lag(position) over w as place, lag(id) over w as other from messages window w as (partition by stream order by position, global))
where global <= before and position <> place and id <> other;
