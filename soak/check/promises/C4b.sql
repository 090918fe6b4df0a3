-- a life of a group is delivered as much again as the holders of its slots may leave
with again as (
	select f.r, count(*) as n from first f join groups g on g.g = f.g where not g.alone and f.last is not null group by f.r
), owners as ( -- of the slots with which it begins, since their positions moved
	select a.r, count(distinct h.holder) as n
	from again a join begins b on b.r = a.r join states s on s.g = b.g and s.n = b.n join spots mine on mine.g = b.g and mine.n = b.n and mine.holder = s.member
		left join spots h on h.g = b.g and h.slot = mine.slot and h.holder <> '' and h.n < b.n
			and h.n >= coalesce((select max(m.n) from moves m where m.g = b.g and m.slot = mine.slot and m.n < b.n and m.position <> m.before), 0)
	group by a.r
)
select r.name || ' was delivered ' || a.n || ' messages again, and may be ' || r.allowance * (1 + coalesce(o.n, 0)) as finding
from again a join runs r on r.rowid = a.r join begins b on b.r = a.r left join owners o on o.r = a.r
where a.n > r.allowance * (1 + coalesce(o.n, 0));
