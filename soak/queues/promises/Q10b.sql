-- staged items come in COMMIT, in the order of their calls
with tried as ( -- an id in one transaction has its first place there
	select id, count(distinct process || ' ' || op) as transactions from sent where call = 'stage' and not back group by id
), staged as (
	select s.process, s.op, min(s.i) as i, s.sent, i.position, i.stream
	from sent s join tried t on t.id = s.id and t.transactions = 1 join items i on i.id = s.id
	where s.call = 'stage' and not s.back and exists (select 1 from inserted r where r.process = s.process and r.op = s.op)
		and (not s.named or i.stream = s.stream and i.place = 0)
	group by s.process, s.op, s.id
), answered as materialized ( -- the highest position of an item whose insertion was answered by then
	select s.ended as at, max(i.position) over (order by s.ended) as highest
	from sent s join items i on i.id = s.id
	where s.answer = 'ok' and not s.back
)
select s.process || ' staged item ' || s.position || ' of ' || s.stream || ' after item ' || s.before || ', in one transaction' as finding
from (select s.*, lag(s.position) over (partition by s.process, s.op order by s.i) as before from staged s) s
where s.before > s.position
union all
select 'item ' || m.position || ' of ' || m.stream || ' was staged by ' || m.process || ', and item ' || m.highest || ', behind it, was inserted before COMMIT'
from (
	select e.*, max(e.known) over (order by e.at, e.position is null rows between unbounded preceding and current row) as highest
	from (
		select s.sent - x.slack as at, s.position, s.stream, s.process, null as known from staged s, limits x where s.sent > 0
		union all
		select a.at, null, null, null, a.highest from answered a
	) e
) m
where m.position < m.highest;
