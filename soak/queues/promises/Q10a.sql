-- a staged item is there once, if and only if its row is
with transactions as (
	select s.process, s.op, s.answer, sum(not s.back) as want, (select count(*) from inserted r where r.process = s.process and r.op = s.op) as got
	from sent s
	where s.call = 'stage'
	group by s.process, s.op
), staged as (
	select s.*, t.got from sent s join transactions t on t.process = s.process and t.op = s.op where s.call = 'stage'
)
select case
		when t.answer = 'ok' then 'the transaction ' || t.op || ' of ' || t.process || ' was committed with ' || t.want || ' rows, and has ' || t.got
		when t.answer in ('undone', 'reused', 'failed') then 'the transaction ' || t.op || ' of ' || t.process || ' was rolled back (' || t.answer || '), and has ' || t.got || ' rows'
		else 'the transaction ' || t.op || ' of ' || t.process || ' has ' || t.got || ' of its ' || t.want || ' rows'
	end as finding
from transactions t
where t.answer = 'ok' and t.got <> t.want or t.answer in ('undone', 'reused', 'failed') and t.got > 0 or t.got not in (0, t.want)
union all
select 'item ' || i.position || ' of ' || i.stream || ' was staged by ' || s.process || ', and no row of it was committed (' || s.answer || ')'
from staged s join items i on i.id = s.id
where not exists (select 1 from inserted r where r.id = s.id)
union all
select count(*) || ' items are in ' || stream || ', which has a unique name'
from items
where stream in (select stream from staged where got > 0 and named and not back)
group by stream
having count(*) > 1
union all
select case
		when i.id is null then 'the row of ' || s.id || ' is there, which ' || s.process || ' staged for ' || s.stream || ', and its item is not'
		else s.id || ' was staged with ' || s.n || ' for ' || s.stream || ' and committed, and item ' || i.position || ' of ' || i.stream || ' has ' || i.n
	end
from staged s left join items i on case when s.named then i.stream = s.stream and i.place = 0 else i.id = s.id end
where s.got > 0 and not s.back and (i.id is null or i.stream <> s.stream or i.n <> s.n);
