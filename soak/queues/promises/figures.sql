-- How much was done.
with takes as (
	select c.told, c.asked ->> 'resume' as resume, json_array_length(c.told, '$.items') as items from calls c where c.call = 'take' and c.answer = 'ok'
), completions as (
	select e.value ->> 'is' as told, e.value ->> 'p' as position, e.value ->> 'v' as version
	from takes t, json_each(t.told, '$.ends') e
	where e.value ->> 'k' = 'c'
), completed as (
	select count(*) filter (where told = 'l') as late, count(*) filter (where told = 'd') - count(distinct case told when 'd' then position || '@' || version end) as again
	from completions
), staged as (
	select c.answer, i.value ->> 'back' as back, i.value ->> case when i.value ->> 'unique' then 'stream' else 'id' end as name
	from calls c, json_each(c.asked, '$.new') i
	where c.call = 'stage'
), stagings as (
	select count(distinct case when answer = 'ok' and back is null then name end) as there, count(*) filter (where answer = 'ok' and back is null) as committed,
		count(*) filter (where answer = 'undone' or answer = 'ok' and back) as back
	from staged
), names as (
	select count(*) - count(distinct c.asked ->> '$.new[0].stream') as again, count(*) as n from calls c where c.call = 'unique' and c.answer = 'ok' and c.told ->> 'had' is null
), ended as (
	select i.n, i.stream, coalesce(r.state in ('d', 'k'), 0) as dead, coalesce((select l.what in ('C', 'D', 'M') from log l where l.position = i.position order by l.version desc limit 1), 0) as ended
	from messages i left join rows r on r.position = i.position
	where exists (select 1 from messages h, limits x where h.n = x.poison or h.stream = x.hot)
)
select 'serverKills', 'kill -9 of PostgreSQL', (select count(*) from calls where call = 'kill' and asked ->> 'target' = 'server')
union all select 'kills', 'kill -9 of processes', (select count(*) from calls where call = 'kill' and asked ->> 'target' <> 'server')
union all select 'dibsKills', '  of those that serve', (select count(*) from calls where call = 'kill' and asked ->> 'target' like 'dibs-%')
union all select 'drains', 'drains of those that serve', (select count(*) from calls where call = 'fault' and answer = 'ok' and asked ->> 'name' = 'drain')
union all select 'stops', 'SIGSTOP of processes for longer than a lease', (select count(*) from calls where call = 'stop' and answer = 'ok')
union all select 'cuts', 'connections cut, or the file locked', (select count(*) from calls where call = 'cut' and asked ->> 'note' is not 'stall')
union all select 'items', 'items inserted', (select coalesce(sum(json_array_length(asked, '$.new')), 0) from calls where call = 'insert' and answer = 'ok') + (select n from names) + (select there from stagings)
union all select 'undone', 'insertions rolled back', (select count(*) from calls where call = 'insert' and answer = 'undone')
union all select 'staged', 'staged inserts', there from stagings
union all select 'leftOut', '  left out: their id or name was taken', committed - there from stagings
union all select 'unstaged', '  rolled back', back from stagings
union all select 'reused', '  refused: it had another content', (select count(*) from calls where call = 'stage' and answer = 'reused')
union all select 'named', 'items of a unique name that was free again', again from names
union all select 'taken', '  insertions that met it taken', (select count(*) from calls where call = 'unique' and told ->> 'had' > 0)
union all select 'deliveries', 'deliveries', (select coalesce(sum(items), 0) from takes)
union all select 'tickets', 'takes served in line, by their tickets', (select count(*) from takes where items > 0 and told ->> 'ticket' > 0)
union all select 'resumed', 'deliveries given to a repeated call', (select count(*) from takes, json_each(told, '$.items') where resume is not null)
union all select 'hungUp', 'calls that hung up', (select count(*) from calls where call = 'receive' and answer in ('failed', 'unknown'))
union all select 'prolonged', 'deliveries made longer', (select count(*) from calls where call = 'prolong' and answer = 'ok')
union all select 'refused', 'late completions refused', (select late from completed) + (select count(*) from calls where call in ('finish', 'complete') and answer = 'lost')
union all select 'transactions', 'completions in a transaction', (select count(*) from calls where call = 'finish' and answer = 'ok')
union all select 'rolledBack', '  that was rolled back', (select count(*) from calls where call = 'finish' and answer = 'undone')
union all select 'again', 'completions told done again', again from completed
union all select 'unknown', 'lost answers', (select count(*) from calls where answer = 'unknown')
union all select 'trims', 'trims of a key''s stream', (select count(*) from calls where call = 'trim' and answer = 'ok' and told ->> 'note' <> '0')
union all select 'pauses', 'pauses', (select count(*) from calls where call = 'change' and answer = 'ok' and asked ->> 'note' = 'pause')
union all select 'jumps', 'jumps of the server''s clock', (select count(*) from calls where call = 'jump' and answer = 'ok')
union all select 'stalls', 'answers kept for several leases', (select count(*) from calls where call = 'cut' and answer = 'ok' and asked ->> 'note' = 'stall')
union all select 'poisons', 'items that killed their processes', (select count(*) from ended, limits x where dead and n = x.poison)
union all select 'others', 'items inserted behind a hot key', (select count(*) from ended, limits x where stream <> x.hot and not ended and exists (select 1 from messages h where h.stream = x.hot))
union all select 'expiries', 'deliveries whose session was over', (select coalesce(sum(lines), 0) from sorts where what = 'e')
union all select 'retries', 'failed deliveries', (select coalesce(sum(lines), 0) from sorts where what = 'r')
union all select 'defers', 'deferred deliveries', (select coalesce(sum(lines), 0) from sorts where what = 'f')
union all select 'givenBack', 'deliveries given back', (select coalesce(sum(lines), 0) from sorts where what = 'u')
union all select 'buried', 'buried items', (select coalesce(sum(lines), 0) from sorts where what = 'x')
union all select 'redriven', 'dead items redriven', (select coalesce(sum(lines), 0) from sorts where what = 'R')
union all select 'cancelled', 'items cancelled or dropped', (select coalesce(sum(lines), 0) from sorts where what in ('C', 'D'));
