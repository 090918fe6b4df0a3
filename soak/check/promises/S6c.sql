-- in a category, what is begun after a write that was acknowledged, or found written, comes behind it
with placed as (
	select w.category, w.since, max(w.until, w.since) as until, w.global as low, z.global as high, p.name
	from written w join parts p on p.rowid = w.p join sent s on s.rowid = w.s join sent l on l.p = w.p and l.n = p.n - 1 join messages z on z.rowid = l.message
	where s.n = 0
), moments as (
	select category, since as moment, 0 as over, low, null as high, name from placed
	union all
	select category, until, 1, null, high, name from placed
), latest as (
	select *, max(high) over (partition by category order by moment, over rows unbounded preceding) as highest from moments
)
select name || ' has global position ' || low || ' of ' || category || ', and was begun when ' || highest || ' was acknowledged' as finding from latest where not over and highest >= low;
