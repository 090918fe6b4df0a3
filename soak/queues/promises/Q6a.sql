-- failures end
with counted as (
	-- What is a failure: one that a handler reports; and the end of a session that had no other item out, as were those
	-- before it. An operator's redrive of a dead item has them count anew, and of another not.
	select l.position, l.n, l.what,
		l.what in ('r', 'x') as reported,
		l.what = 'e' and (select count(*) from lines o where o.what = 'e' and o.session = l.session and o.at = l.at) = 1 as alone,
		sum(l.what = 'e') over w - (l.what = 'e') as ends_before,
		sum(l.what = 'R') over w as redrives
	from lines l
	window w as (partition by l.position order by l.n)
), steps as (
	select c.*,
		sum(c.reported) over (partition by c.position, c.redrives order by c.n) as least,
		sum(c.reported or c.alone) over (partition by c.position order by c.n) as raised
	from counted c
), bounds as (
	-- the most after a line: each failure is one more, and one of a session is at least one more than the ends before
	select s.position, s.n + 1 as version, s.least,
		s.raised + max(0, coalesce(max(case when s.alone then s.ends_before + 1 - s.raised end) over (partition by s.position order by s.n), 0)) as most
	from steps s
	union all
	select i.position, 0, 0, 0 from items i
)
select case
		when g.failures >= x.max_failures then 'item ' || g.position || ' was given with ' || g.failures || ' failures, and is dead with ' || x.max_failures
		else 'item ' || g.position || ' was given at version ' || g.version || ' with ' || g.failures || ' failures, and its lines tell ' || b.least || ' to ' || b.most
	end as finding
from given g join bounds b on b.position = g.position and b.version = g.version, limits x
where g.failures >= x.max_failures or g.failures < b.least or g.failures > b.most
union all
select 'item ' || b.position || ' has ' || b.least || ' failures, and is dead with ' || x.max_failures from bounds b, limits x where b.least > x.max_failures
union all
select 'item ' || i.position || ' is dead with ' || i.failures || ' failures, and was not buried'
from items i, limits x
where i.dead and i.failures < x.max_failures and (select l.what from lines l where l.position = i.position order by l.n desc limit 1) <> 'x';
