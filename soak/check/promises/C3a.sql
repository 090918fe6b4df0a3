-- of two lives with one identity only the second goes on to store checkpoints
with epochs as (
	select p.rowid as put, p.g, p.r, p.name, p.at, p.ended, (select count(*) from failovers f where f.ended <= p.at) as epoch from puts p join groups g on g.g = p.g where g.alone and p.answer = 'ok'
), others as ( -- of two that are stored at once it is not known which was the first
	select e.*, max(e.ended) over (partition by g, epoch order by at, put rows between unbounded preceding and 1 preceding) as before, lag(r) over w as r_before, lead(r) over w as r_after, lead(at) over w as after
	from epochs e window w as (partition by g, epoch order by at, put)
), clear as (
	select *, lag(r) over (partition by g, epoch order by at, put) is not r as another from others
	where coalesce(before < at or r_before = r, 1) and coalesce(after > ended or r_after = r, 1)
)
select g.name || ': life ' || r.name || ' stored checkpoints, another did, and then it again' as finding
from clear c join groups g on g.g = c.g join runs r on r.rowid = c.r where c.another group by c.g, c.epoch, c.r having count(*) > 1;
