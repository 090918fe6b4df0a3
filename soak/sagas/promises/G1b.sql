-- a step in a transaction has the rows of its record
select 'saga ' || r.saga || ' has a row of ' || r.step || ', which has not begun' as finding
from rows r join sagas s on s.saga = r.saga
where s.end is not null and not exists (select 1 from steps o where o.saga = r.saga and o.step = r.step)
union all
select 'saga ' || saga || ' has ' || got || ' rows of ' || what || ' ' || step || ', and ' || want || ' by its record'
from (
	select o.saga, o.step, w.value as what, case w.value when 'do' then o.done is not null else o.undone is not null and not o.void end as want,
		(select count(*) from rows r where r.saga = o.saga and r.step = o.step and r.what = w.value) as got
	from steps o join sagas s on s.saga = o.saga, json_each('["do","undo"]') w
	where o.kind = 'tx' and s.end is not null
)
where got <> want;
