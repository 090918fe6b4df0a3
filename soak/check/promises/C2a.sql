-- the messages of a stream are first delivered in their order
with neighbours as (
	select g, stream, position, began, lag(position) over w as before, lag(began) over w as began_before, lag(parked) over w as parked_before from met window w as (partition by g, stream order by position)
)
select g.name || ' was first delivered ' || n.stream || '@' || n.position || ', and ' || n.before || ' only after it or never' as finding
from neighbours n join groups g on g.g = n.g, limits x
where n.began <> x.never and n.began_before > n.began and n.parked_before > n.began;
