-- How much was done.
with waits as (
	select coalesce(told ->> 'state', '') as state from calls where call = 'wait' and answer = 'ok'
), late as ( -- by how many milliseconds timers rang late
	select (r.at - max(m.due, m.at)) / 1000 as ms, percent_rank() over (order by r.at - max(m.due, m.at)) as rank
	from messages m join (select asked ->> '$.ids[0]' as id, min(at) as at from calls where call = 'ring' group by 1) r on r.id = m.id
	where m.category = 'ring'
)
select 'serverKills', 'kill -9 of PostgreSQL', (select count(*) from calls where call = 'kill' and asked ->> 'target' = 'server')
union all select 'kills', 'kill -9 of runners', (select count(*) from calls where call = 'kill' and asked ->> 'target' <> 'server')
union all select 'stops', 'SIGSTOP of runners for longer than a lease', (select count(*) from calls where call = 'stop' and answer = 'ok')
union all select 'cuts', 'connections cut', (select count(*) from calls where call = 'cut')
union all select 'jumps', 'jumps of the server''s clock', (select count(*) from calls where call = 'jump' and answer = 'ok')
union all select 'setBacks', '  records of sagas that it went back', (select count(*) from messages where type = 'SetBack')
union all select 'sagas', 'sagas', (select count(*) from waits where state in ('completed', 'compensated', 'resolved'))
union all select 'completed', '  completed', (select count(*) from waits where state = 'completed')
union all select 'compensated', '  compensated', (select count(*) from waits where state = 'compensated')
union all select 'suspended', 'waits that ended with a saga that is suspended', (select count(*) from waits where state not in ('completed', 'compensated', 'resolved'))
union all select 'cancels', 'cancels', (select count(*) from calls where call = 'tell' and asked ->> 'note' = 'cancel')
union all select 'resumes', 'resumes', (select count(*) from calls where call = 'tell' and asked ->> 'note' = 'resume')
union all select 'replies', 'replies from outside', (select count(*) from calls where call = 'tell' and asked ->> 'note' = 'approve')
union all select 'steps', 'calls of functions of steps', (select count(*) from calls where call = 'do')
union all select 'undos', 'calls of undos', (select count(*) from calls where call = 'undo')
union all select 'timers', 'timers set', (select coalesce(sum(json_array_length(asked, '$.ids')), 0) from calls where call = 'set')
union all select 'rung', '  rung', (select count(*) from calls where call = 'ring')
union all select 'letters', 'letters that the sink took', (select count(*) from calls where call = 'send' and answer = 'ok')
union all select 'refused', '  refused', (select count(*) from calls where call = 'send' and answer = 'failed')
union all select '', 'timers rung late by, p50 in ms', (select coalesce(max(ms), 0) from late where rank <= 0.5)
union all select '', '  p99', (select coalesce(max(ms), 0) from late where rank <= 0.99)
union all select '', '  max', (select coalesce(max(ms), 0) from late)
union all select '', 'timers rung again', (select count(*) - count(distinct asked ->> '$.ids[0]') from calls where call = 'ring')
union all select '', 'letters taken again', (
	select count(*) - count(distinct asked ->> 'stream' || ' ' || coalesce(asked ->> 'position', 0)) from calls where call = 'send' and answer = 'ok')
union all select 'known', 'messages whose runner is known', (select count(*) from messages where id in (select i.value from calls c, json_each(c.asked, '$.ids') i where c.call = 'write'))
union all select key, name, n from counted;
