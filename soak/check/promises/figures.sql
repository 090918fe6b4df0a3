with written as (
	select c.answer, coalesce(json_array_length(c.asked, '$.appends'), 0) as parts, (select count(*) from json_each(c.told, '$.appends') t where c.answer = 'ok' and t.value ->> 'duplicate') as duplicates,
		(select count(*) from json_each(c.asked, '$.appends') a where c.answer = 'ok' and json_array_length(a.value, '$.messages') > 1) as batches
	from calls c where c.call in ('write', 'write-tx')
), counted as (
	select sum(case answer when 'ok' then parts - duplicates end) as done, sum(answer = 'ok' and parts > 1) as several, sum(duplicates) as duplicates, sum(batches) as batches,
		sum(answer = 'conflict') as conflicts, sum(answer = 'id-conflict') as taken, sum(answer = 'rolled-back') as back, sum(answer in ('', 'unknown')) as unknown
	from written
), answers as (
	select call, answer, count(*) as n from calls group by call, answer
), resolved as (
	select sum(answer = 'written') as written, sum(answer = 'not-written') as missing from calls where call = 'resolve'
), figures as (
	select 1 as place, 'serverKills' as key, 'kill -9 of PostgreSQL under load' as name, (select count(*) from calls where call = 'kill' and asked ->> 'target' = 'server') as n
	union all select 2, 'clientKills', 'kill -9 of clients at failpoints', (select count(*) from calls where call = 'kill' and asked ->> 'note' like 'failpoint%')
	union all select 3, 'messages', 'messages through faults', coalesce((select n from progress where what = 'messages'), 0)
	union all select 4, 'resolved', 'unknown outcomes that were resolved', coalesce(written + missing, 0) from resolved
	union all select 5, 'wereWritten', '  as written', coalesce(written, 0) from resolved
	union all select 6, 'wereNot', '  as not written', coalesce(missing, 0) from resolved
	union all select 7, 'unknown', 'writes of unknown outcome', coalesce(unknown, 0) from counted
	union all select 8, 'checked', 'answers about a stream''s version', coalesce(done + conflicts, 0) + coalesce((select sum(n) from answers where call in ('version', 'read') and answer = 'ok'), 0) from counted
	union all select 9, 'conflicts', 'version conflicts', coalesce(conflicts, 0) from counted
	union all select 10, 'batches', 'batches written', coalesce(batches, 0) from counted
	union all select 11, 'several', 'writes to several streams', coalesce(several, 0) from counted
	union all select 12, 'duplicates', 'duplicates', coalesce(duplicates, 0) from counted
	union all select 13, 'idConflicts', 'writes that met an id that was taken', coalesce(taken, 0) from counted
	union all select 14, 'rolledBack', 'transactions rolled back by their own will', coalesce(back, 0) from counted
	union all select 15, 'done:' || c.value, c.value || ' done', coalesce((select sum(a.n) from answers a where a.call = c.value and (a.answer in ('ok', 'written', 'not-written', 'won', 'duplicate') or c.value in ('effect', 'fetch'))), 0)
		from json_each('["write", "write-tx", "version", "read", "resolve", "handle", "position", "reserve", "effect", "park"]') c
	union all select 16, 'reused', 'reservations that met their key used for something else', coalesce((select sum(n) from answers where call = 'reserve' and answer = 'key-reused'), 0)
	union all select 17, 'takeovers', 'lives of consumers that went on from another', (select count(*) - count(distinct asked ->> 'consumer' || ' of ' || (asked ->> 'category')) from calls where call = 'run')
	union all select 18, 'epochs', 'lives that began again in another epoch', coalesce((select sum(n) from answers where call = 'run' and answer = 'epoch'), 0)
	union all select 19, 'fault:' || (asked ->> 'name'), asked ->> 'name', count(*) from calls where call = 'fault' group by asked ->> 'name'
	union all select 20, 'made', 'made of what was undone, while it was in flight', n from progress where what = 'made'
	union all select 21, key, name, n from counts
)
select key, name, n from figures order by place;
