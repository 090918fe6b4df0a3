-- after a crash at most an interval and a batch come again, and as much for each life beside
-- What a failover took the checkpoint of may come again too.
with lives as (
	select r.rowid as r, r.g, r.name, r.at, max(r.at, coalesce((select max(d.at) from handed d where d.r = r.rowid), 0), coalesce((select max(p.at) from puts p where p.r = r.rowid), 0)) as last
	from runs r join groups g on g.g = r.g where g.alone
), held as ( -- up to where each failover kept the checkpoints
	select f.f, f.ended, g.g, coalesce((select max(p.position) from puts p where p.g = g.g and p.answer = 'ok' and p.ended < f.at
		and not exists (select 1 from failovers b where b.f < f.f and p.ended >= b.at and p.at < b.ended)), 0) as position
	from failovers f, groups g
), again as (
	select f.r, count(*) as n, min(f.name) as name from first f
	where f.last is not null and not exists (select 1 from held h where h.g = f.g and f.last < h.ended and h.ended <= f.at and f.global >= h.position)
	group by f.r
)
select l.name || ' was delivered ' || a.n || ' messages again, from ' || a.name || ' on, and may be ' || g.allowance * (1 + count(o.r)) as finding
from again a join lives l on l.r = a.r join groups g on g.g = l.g left join lives o on o.g = l.g and o.r <> l.r and o.at <= l.last and l.at <= o.last
group by a.r having a.n > g.allowance * (1 + count(o.r));
