-- the log has nothing unexpected, no index is broken, memory does not grow
with lines as (
	select name, n, at - min(at) over (partition by name) as t from facts where what = 'memory'
), warm as (
	select l.name, l.n * 1.0 as y, l.t / 3.6e9 as x, avg(l.n) over (partition by l.name) as mean_y, avg(l.t / 3.6e9) over (partition by l.name) as mean_x, l.t, v.watched from lines l, limits v where l.t >= v.warm
), slopes as ( -- the line through the samples of each process, in parts of their mean an hour
	select name, sum((x - mean_x) * (y - mean_y)) / sum((x - mean_x) * (x - mean_x)) / mean_y as growth from warm group by name having max(t) - min(t) >= watched and mean_y > 0
)
select 'a secret is in ' || name as finding from facts where what = 'searched' and n > 0
union all
select 'the memory of ' || s.name || ' grows by ' || cast(100 * s.growth as integer) || ' per cent an hour' from slopes s, limits x where 100 * s.growth > x.growth
union all
select 'amcheck found: ' || name from facts where what = 'amcheck' and name <> ''
union all
-- What our functions answer, what is ended or asked to try again, and connections, resources and the disk; an id that comes again.
select 'the server''s log has ' || name from facts
where what = 'log' and substr(name, 1, 2) not in ('DB', '08', '53') and substr(name, 1, 5) not in ('40001', '40P01', '55P03', '57014', '57P01', '57P02', '57P03', '25P03', '25P02', '58030', '23505')
	-- A parallel worker whose leader was cancelled before it was there.
	and substr(name, 7) not in ('could not map dynamic shared memory segment', 'could not attach to dynamic shared area');
