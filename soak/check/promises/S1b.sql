-- a failover keeps nothing that began after what it lost
with lost as (
	select f.f, f.name, f.ended, min(u.ended) as at from failovers f join undone u on u.ended > f.at and u.at < f.ended group by f.f
)
select l.name || ' undid a write that was acknowledged at ' || l.at || ', and kept message ' || w.id || ', which began after it, at ' || w.since as finding
from lost l join kept k on k.f = l.f join written w on w.category = k.category and w.global <= k.head and w.p is not null
where w.since > l.at and w.since < l.ended;
