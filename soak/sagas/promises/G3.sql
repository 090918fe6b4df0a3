-- a saga has one end, and its customer is told of it
select 'saga ' || saga || ', ' || type || ' at ' || n || ': ' || finding as finding from wrong where rule = 'G3'
union all
select 'in the end there was left: ' || coalesce(told ->> 'note', '') from calls where call = 'drain' and answer <> 'ok'
union all
select 'saga ' || (asked ->> 'saga') || ' was begun, and is not there' from calls where call = 'begin' and answer = 'ok' and asked ->> 'saga' not in (select saga from sagas)
union all
select 'saga ' || saga || ' was begun by nobody' from sagas where saga not in (select asked ->> 'saga' from calls where call = 'begin')
union all
select 'saga ' || saga || ' has no end' from sagas where end is null
union all
select 'the customer of saga ' || s.saga || ', which is ' || lower(e.type) || ', was told ' || coalesce(w.state, 'nothing') || ' in the end'
from sagas s join story e on e.saga = s.saga and e.n = s.end left join (
	select asked ->> 'saga' as saga, told ->> 'state' as state, row_number() over (partition by asked ->> 'saga' order by at desc) as last from calls where call = 'wait' and answer = 'ok'
) w on w.saga = s.saga and w.last = 1
where w.state is not lower(e.type);
