-- How much was done.
with folded as (
	select m.stream, m.type, m.at, m.data ->> 'session' as session, m.data ->> 'ttl' as ttl, sum(m.type = 'Reserved') over w as lease,
		lag(m.data -> 'line') over w as line_before, lag(m.type) over w as type_before, lag(m.data ->> 'released') over w as released_said
	from messages m
	window w as (partition by m.stream order by m.position)
), leases as materialized (
	select stream, lease, session, ttl, min(at) as at, max(line_before) filter (where type = 'Reserved') as line_before,
		coalesce(max(type_before = 'Released' or type_before = 'Waiting' and released_said) filter (where type = 'Reserved'), 0) as released_before,
		max(at) filter (where type in ('Reserved', 'Extended')) as sign, max(at) filter (where type = 'Released') as released, max(at) filter (where type = 'Confirmed') as confirmed,
		lead(min(at)) over (partition by stream order by lease) as taken
	from folded
	where lease > 0
	group by stream, lease
)
select 'serverKills', 'kill -9 of PostgreSQL', (select count(*) from calls where call = 'kill' and asked ->> 'target' = 'server')
union all select 'kills', 'kill -9 of holders', (
	select count(*) from calls k
	where k.call = 'kill' and exists (
		select 1 from leases l
		where substr(l.session, 1, instr(l.session, '/') - 1) = k.asked ->> 'target' and l.at < k.at
			and k.at < coalesce(l.confirmed, l.taken, k.at + 1) and k.at < coalesce(l.released, l.sign + l.ttl * 1000)))
union all select 'dibsKills', 'kill -9 of those that serve', (select count(*) from calls where call = 'kill' and asked ->> 'target' like 'dibs-%')
union all select 'drains', 'drains of those that serve', (select count(*) from calls where call = 'fault' and answer = 'ok' and asked ->> 'name' = 'drain')
union all select 'stops', 'SIGSTOP of holders for longer than a lease', (select count(*) from calls, limits where call = 'stop' and answer = 'ok' and ended - at > ttl)
union all select 'bouncerKills', 'kill -9 of PgBouncer', (select count(*) from calls where call = 'kill' and asked ->> 'target' = 'pgbouncer')
union all select 'jumps', 'jumps of the server''s clock', (select count(*) from calls where call = 'jump')
union all select 'freezes', 'the server''s clock frozen', (select count(*) from calls where call = 'freeze')
union all select 'syncFailovers', 'failovers to a synchronous standby', (select count(*) from calls where call = 'failover' and asked ->> 'target' = 'sync')
union all select 'asyncFailovers', 'failovers to an asynchronous standby', (select count(*) from calls where call = 'failover' and asked ->> 'target' = 'async')
union all select 'takeovers', 'takeovers', (select count(*) from leases where lease > 1 and not released_before)
union all select 'lateConfirms', 'late confirms refused', (select count(*) from calls where call in ('confirm', 'transact') and answer = 'lost')
union all select 'lateWrites', 'late writes refused', (select count(*) from writes where not accepted)
union all select 'reentrant', 'leases given again to their session', (select count(*) - count(distinct asked ->> 'session' || ' ' || (told ->> 'token')) from calls where call = 'reserve' and answer = 'reserved')
union all select 'unknownReserves', 'unknown outcomes of reserve', (select count(*) from calls where call = 'reserve' and answer = 'unknown')
union all select 'unknownConfirms', 'unknown outcomes of confirm', (select count(*) from calls where call = 'confirm' and answer = 'unknown')
union all select 'unknownCommits', 'unknown outcomes of COMMIT', (select count(*) from calls where call = 'transact' and answer = 'unknown')
union all select 'held', 'told held', (select count(*) from calls where answer = 'held')
union all select 'done', 'told done', (select count(*) from calls where call = 'reserve' and answer = 'done')
union all select 'reused', 'told reused', (select count(*) from calls where answer = 'reused')
union all select 'turns', 'turns of a line', (select count(*) from leases where session in (select value from json_each(line_before)))
union all select 'several', 'leases of several keys', (select count(*) from calls where call = 'reserve' and answer = 'reserved' and told ->> 'with' is not null)
union all select 'awaits', 'ends that were awaited', (select count(*) from calls where call = 'await' and answer in ('done', 'free'))
union all select 'forced', 'releases by an operator', (select count(*) from calls where call = 'force' and answer = 'ok')
union all select 'work', 'looks at a lease before work', (select count(*) from calls where call = 'work' and answer = 'ok')
union all select 'paused', '  work begun late, by a stopped process', (select coalesce(sum(n), 0) from counted where key = 'paused')
union all select 'undone', 'answers that a failover undid', (select coalesce(sum(n), 0) from counted where key = 'undone')
union all select 'above', 'grants above one that was undone', (select coalesce(sum(n), 0) from counted where key = 'above')
union all select 'strayed', '  intents that an undone lease wrote to', (select coalesce(sum(n), 0) from counted where key = 'strayed');
