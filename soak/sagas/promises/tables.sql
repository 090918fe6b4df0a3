-- What several promises look at. What is taken from JSON is cast: an index serves no comparison with a column of another type.

create index if not exists messages_place on messages (stream, position);
create index if not exists messages_id on messages (id);
create index if not exists turns_stream on turns (stream);


drop table if exists faults;
create table faults as
	select case when c.call = 'kill' and c.asked ->> 'target' = 'server' then 'outage' else c.call end as what, cast(c.asked ->> 'target' as text) as process, c.at as since, c.ended as until,
		coalesce(c.asked ->> 'off', 0) as off
	from calls c
	where c.call in ('kill', 'cut', 'stop', 'jump');

drop table if exists rings;
create table rings as -- of timers, one after the other
	select cast(c.asked ->> '$.ids[0]' as text) as id, c.asked ->> 'due' as due, c.process, c.at,
		row_number() over w - 1 as again, lag(c.process) over w as process_before, lag(c.at) over w as before
	from calls c
	where c.call = 'ring'
	window w as (partition by c.asked ->> '$.ids[0]' order by c.at);
create index rings_id on rings (id);

drop table if exists letters;
create table letters as -- that the sink took, in their order: at the end of the call, or never as far as is known
	select c.process, cast(c.asked ->> 'stream' as text) as stream, cast(coalesce(c.asked ->> 'position', 0) as integer) as position, cast(c.asked ->> '$.ids[0]' as text) as id, c.answer,
		coalesce(max(case c.answer when 'ok' then coalesce(c.asked ->> 'position', 0) end) over (
			partition by c.asked ->> 'stream' order by c.ended, c.at rows between unbounded preceding and 1 preceding
		), -1) + 1 as next
	from calls c
	where c.call = 'send' and (c.answer = 'ok' or c.ended = (select never from limits));
create index letters_place on letters (stream, position);

-- How busy the machine was: what one in a hundred of those that begin a saga waited for the answer, beside what something
-- takes at most that takes no time.
drop table if exists patience;
create table patience as
	select 5000000 + coalesce((
		select ended - at from calls where call = 'begin' and answer = 'ok' order by ended - at
		limit 1 offset (select count(*) * 99 / 100 from calls where call = 'begin' and answer = 'ok')
	), 0) as us;

drop table if exists writers;
create table writers as select cast(i.value as text) as id, max(c.process) as process from calls c, json_each(c.asked, '$.ids') i where c.call = 'write' group by i.value;
create unique index writers_id on writers (id);

-- The messages of sagas, with the times as they were: while the server's clock was off it dated them wrong, and a runner counts
-- on from a time that it has read.
drop table if exists story;
create table story as
	with read as (
		select m.rowid as n, cast(substr(m.stream, length('order:saga-') + 1) as text) as saga, m.*, m.data ->> 'at' as read_at,
			coalesce((select j.off from faults j where j.what = 'jump' and m.at - j.off between j.since and j.until + 1000000 limit 1), 0) as off,
			coalesce((select j.off from faults j where j.what = 'jump' and (m.data ->> 'at') - j.off between j.since and j.until + 1000000 limit 1), 0) as read_off
		from messages m
		where m.category = 'order:saga'
	)
	select r.saga, cast(row_number() over w - 1 as integer) as n, r.position, r.id, r.type, r.at - r.off as at, r.data, coalesce(t.process, '') as writer,
		r.type in ('Started', 'Replied', 'Signalled', 'CancelRequested', 'Resumed', 'Resolved') as outside,
		cast(r.data ->> 'step' as text) as step, coalesce(r.data ->> 'attempt', 0) as attempt, coalesce(r.data ->> 'kind', '') as kind, coalesce(r.data ->> 'error', '') as error,
		coalesce(r.data ->> 'reason', '') as reason, coalesce(r.data ->> 'why', '') as why, coalesce(r.data ->> 'nothing', 0) as void,
		(r.data ->> 'retryAt') - iif(r.read_at is null, r.off, r.read_off) as retry_at, (r.data ->> 'replyBy') - iif(r.read_at is null, r.off, r.read_off) as reply_by,
		(r.data ->> 'until') - iif(r.read_at is null, r.off, r.read_off) as until
	from read r left join writers t on t.id = r.id
	window w as (partition by r.saga order by r.n);
create unique index story_place on story (saga, n);
create index story_type on story (saga, type);

-- Each message with what was before it: of the saga.
drop table if exists folded;
create table folded as
	with before as (
		select s.*,
			lag(s.type) over w as type_before, lag(s.data) over w as data_before,
			coalesce(sum(s.type = 'Compensating') over p, 0) > 0 as compensating,
			coalesce(sum(s.type = 'CancelRequested') over p, 0) > 0 as cancelled,
			coalesce(sum(s.type = 'Done' and s.step = 'book') over p, 0) > 0 as pivoted,
			cast(max(case when not s.outside then s.n end) over p as integer) as runner, -- the last message of a runner
			max(case when s.type in ('Started', 'SetBack') then s.at end) over u as counted
		from story s
		window w as (partition by s.saga order by s.n), p as (partition by s.saga order by s.n rows between unbounded preceding and 1 preceding),
			u as (partition by s.saga order by s.n rows between unbounded preceding and current row)
	), held as (
		select b.*, max(case when b.type in ('Suspended', 'Resumed', 'Compensating') or b.type = 'CancelRequested' and not b.compensating and not b.pivoted then b.n end)
			over (partition by b.saga order by b.n rows between unbounded preceding and 1 preceding) as turned
		from before b
	)
	select h.*, t.type = 'Suspended' is true as suspended, t.step as suspended_step, t.why as suspended_why,
		case when r.type = 'Waiting' and r.at <= r.until then r.until else 0 end as asleep, r.type = 'Waiting' is true as waits, r.until as waits_until,
		h.counted + coalesce(f.data ->> 'deadlineMillis', 0) * 1000 as deadline,
		exists (select 1 from faults j where j.what = 'jump' and j.since <= h.at and f.at <= j.until) as jumped
	from held h join story f on f.saga = h.saga and f.n = 0 left join story t on t.saga = h.saga and t.n = h.turned left join story r on r.saga = h.saga and r.n = h.runner;
create unique index folded_place on folded (saga, n);
create index folded_type on folded (saga, type);

-- And of its step. A resume has a step begin again that its saga was suspended for.
drop table if exists happened;
create table happened as
	select saga, step, n, at, type as what, attempt, kind, error, retry_at, reply_by, void from folded
	where type in ('Began', 'Done', 'Failed', 'Replied', 'Undone', 'UndoFailed') and step is not null
	union all
	select saga, suspended_step, n, at, 'Again', 0, '', '', null, null, 0 from folded where type = 'Resumed' and suspended and suspended_why = 'failed';
create index happened_place on happened (saga, step, n);
drop table if exists stepped;
create table stepped as
	with counted as (
		select h.*, sum(h.what = 'Again') over w as epoch, sum(h.what = 'Began') over w - (h.what = 'Began') as begins,
			sum(h.what = 'Replied') over w as replies,
			max(case h.what when 'Began' then h.n end) over (w rows between unbounded preceding and 1 preceding) as last,
			max(case when h.what in ('Began', 'Failed') then h.n end) over (w rows between unbounded preceding and 1 preceding) as tried
		from happened h
		window w as (partition by h.saga, h.step order by h.n)
	), placed as (
		select c.*, coalesce(l.attempt, 0) as attempt_last, l.reply_by as reply_by_last, coalesce((select f.kind from happened f where f.saga = c.saga and f.step = c.step and f.what = 'Began' order by f.n limit 1), '') as step_kind,
			-- until when it is not tried, unless a resume came
			case when t.what = 'Failed' and not exists (select 1 from story r where r.saga = c.saga and r.type = 'Resumed' and r.n > t.n and r.n < c.n) then coalesce(t.retry_at, 0) else 0 end as not_before,
			coalesce(t.what = 'Failed' and t.retry_at > 0, 0) as failed, -- its last attempt, and not for good
			coalesce(sum(c.what = 'Began') over (partition by c.saga, c.step, c.epoch order by c.n rows between unbounded preceding and 1 preceding), 0) > 0 as begun,
			(select e.error from happened e where e.saga = c.saga and e.step = c.step and e.what = 'Replied' and e.n < c.n order by e.n limit 1) as early
		from counted c
			left join folded l on l.saga = c.saga and l.n = c.last
			left join happened t on t.saga = c.saga and t.step = c.step and t.n = c.tried and t.what in ('Began', 'Failed')
	), judged as ( -- what ends it, if it has not ended: a reply to an earlier attempt does not
		select p.*, coalesce(p.what = 'Done' or p.what = 'Failed' and coalesce(p.retry_at, 0) = 0
				or p.what = 'Replied' and p.begins > 0 and (p.attempt = 0 or p.attempt = p.attempt_last) and (p.epoch = 0 or p.begun)
				or p.what = 'Began' and p.begins = 0 and p.attempt = 1 and p.kind = 'ask' and p.replies > 0, 0) as ends,
			case p.what when 'Done' then 1 when 'Replied' then p.error = '' when 'Began' then coalesce(p.early, '') = '' else 0 end as well
		from placed p
	), settled as (
		select j.*, coalesce(sum(j.ends) over (partition by j.saga, j.step, j.epoch order by j.n rows between unbounded preceding and 1 preceding), 0) > 0 as settled
		from judged j
	)
	select s.*, s.ends and (not s.settled or s.what = 'Done') and s.well as does,
		max(s.settled, coalesce(max(s.ends and (not s.settled or s.what = 'Done') and s.well) over (partition by s.saga, s.step order by s.n rows between unbounded preceding and 1 preceding), 0)) as over
	from settled s;
create index stepped_place on stepped (saga, n);

drop table if exists steps;
create table steps as
	select s.saga, s.step, s.step_kind as kind, cast(min(case s.what when 'Began' then s.n end) as integer) as began, cast(min(case when s.does then s.n end) as integer) as done,
		max(case s.what when 'Undone' then s.at end) as undone, min(case s.what when 'Undone' then s.n end) as undone_n, max(case s.what when 'Undone' then s.void end) as void
	from stepped s
	group by s.saga, s.step
	having began is not null;
create unique index steps_name on steps (saga, step);

drop table if exists sagas;
create table sagas as
	select f.saga, max(f.deadline) as deadline,
		cast(max(case when f.type in ('Completed', 'Compensated') or f.type = 'Resolved' and f.suspended and f.pivoted then f.n end) as integer) as end,
		min(case when f.type in ('Completed', 'Compensated') or f.type = 'Resolved' and f.suspended and f.pivoted then f.n end) as first_end,
		cast(min(case f.type when 'Compensating' then f.n end) as integer) as compensating,
		cast(min(case when f.type = 'Done' and f.step = 'book' then f.n end) as integer) as pivot
	from folded f
	group by f.saga;
create unique index sagas_name on sagas (saga);

-- Turns of sagas that were lost, each with the pause after it, as docs/queue.md says: the lease, and from the second time on
-- 2, 4, 8 and more seconds.
drop table if exists lost;
create table lost as
	with read as (
		select t.rowid as n, cast(substr(t.stream, length('order:saga-') + 1) as text) as saga, t.what,
			t.at - coalesce((select j.off from faults j where j.what = 'jump' and t.at - j.off between j.since and j.until + 1000000 limit 1), 0) as at
		from turns t
		where t.stream like 'order:saga-%'
	)
	select r.*, case
			when r.what <> 'e' then 1000000
			when sum(r.what = 'e') over w = 1 then x.lease
			else x.lease + (1000000 << min(sum(r.what = 'e') over w - 1, 12))
		end as pause,
		cast(coalesce((select min(s.at) from story s where s.saga = r.saga and not s.outside and s.at > r.at), x.never) as integer) as next
	from read r, limits x
	window w as (partition by r.saga order by r.n);
create index lost_saga on lost (saga);

-- The times in which a saga is to have a session alone, since two turns in a row were lost with its processes: the turns of
-- others wait for it.
drop table if exists alone;
create table alone as
	select g.saga, g.due as since, min(g.next, g.due + p.us - 3000000) + 1000000 as until
	from (
		select l.saga, l.next, max(l.at) + (1000000 << min(count(*) - 1, 12)) as due, count(*) as times
		from lost l
		where l.what = 'e' and not exists (select 1 from lost o where o.saga = l.saga and o.next = l.next and o.what <> 'e' and o.n > l.n)
		group by l.saga, l.next
	) g, patience p
	where g.times > 1;

-- What could have gone on and went on late, by more than the machine's patience, and what faults explain of that.
drop table if exists lates;
create table lates as
	with woken as ( -- by a sleep that is over, or the first message from outside that is a reason to go on
		select f.saga, f.n, f.at, f.type, f.reason, case when f.waits then f.waits_until else w.at end as since, not f.waits and w.reply as answered
		from folded f left join (
			select w.saga, w.n, w.at, coalesce(w.runner, -1) as runner, w.type = 'Replied' as reply, row_number() over (partition by w.saga, w.runner order by w.n) as turn
			from folded w
			where not w.compensating and (
				w.type = 'CancelRequested' and not w.pivoted or w.type = 'Resumed' and w.suspended
				or w.type = 'Replied' and not w.suspended and exists (
					select 1 from stepped s where s.saga = w.saga and s.n = w.n and s.what = 'Replied' and s.ends and not s.over
				)
			)
		) w on w.saga = f.saga and w.runner = coalesce(f.runner, -1) and w.n < f.n and w.turn = 1
		where not f.outside
	), behind as ( -- its deadline, unless its pivot was in time
		select f.saga, f.n, f.at, 'deadline' as what, s.deadline as since, f.type, 0 as answered, f.reason
		from sagas s join folded f on f.saga = s.saga
		where s.end is not null and (f.type = 'Began' or f.n = coalesce(s.compensating, s.end) or f.n = s.pivot)
	), all_of as (
		select saga, n, at, 'woken' as what, since, type, answered, reason from woken where since is not null
		union all
		select * from behind
	)
	select a.*, a.at - a.since as took, case when a.at - a.since > p.us then
			(select coalesce(sum(max(0, min(o.until, a.at) - max(o.since, a.since)) + case o.what when 'outage' then 1000000 else 0 end), 0)
				from faults o where o.what in ('outage', 'jump') and o.since < a.at and o.until > a.since)
			+ (select coalesce(sum(l.pause), 0) from lost l where l.saga = a.saga and l.at < a.at and l.at + l.pause > a.since)
			+ (select coalesce(sum(max(0, min(o.until, a.at) - max(o.since, a.since, coalesce(o.covered, 0)))), 0)
				from (
					select o.since, o.until, max(o.until) over (order by o.since rows between unbounded preceding and 1 preceding) as covered
					from alone o
					where o.saga <> a.saga and o.since < a.at and o.until > a.since
				) o)
		end as explained
	from all_of a, patience p;
create index lates_saga on lates (saga, what);

delete from counted;
insert into counted
	with answered as (select took / 1000 as ms, percent_rank() over (order by took) as rank from lates where what = 'woken' and answered)
	select '', 'from a reply to the next record, p50 in ms', coalesce(max(ms), 0) from answered where rank <= 0.5
	union all
	select '', '  p99', coalesce(max(ms), 0) from answered where rank <= 0.99
	union all
	select '', '  max', coalesce(max(ms), 0) from answered
	union all
	select 'outrun', 'answered, and ended by the deadline', count(*) from lates where what = 'woken' and answered and type = 'Compensating' and reason = 'the deadline is over';

-- What in a saga's stream does not follow from what is before it.
drop table if exists wrong;
create table wrong as
	select 'G2' as rule, saga, n, type, 'it is in place ' || n as finding from folded where position <> n or (n = 0) <> (type = 'Started')
	union all
	select 'G2', saga, n, type, 'it is there twice in a row' from folded f
	where not outside and n > 0 and type <> 'SetBack' and type = type_before and data = data_before and not exists (select 1 from sagas s where s.saga = f.saga and s.first_end < f.n)
	union all
	select 'G3', f.saga, f.n, f.type, 'it is behind the end' from folded f join sagas s on s.saga = f.saga where not f.outside and f.n > s.first_end
	union all
	select 'G10', saga, n, type, 'the clock has not gone back' from folded where type = 'SetBack' and not jumped
	union all
	select 'G10', saga, n, type, 'it sleeps for another ' || ((asleep - at) / 1000) || ' ms' from folded
	where not outside and type not in ('Waiting', 'Compensating', 'SetBack') and asleep > at and not jumped
	union all
	select 'G2', saga, n, type, 'the saga is suspended' from folded where not outside and type not in ('Compensating', 'SetBack') and suspended
	union all
	select 'G2', saga, n, what, step || ' has not begun' from stepped where what in ('Done', 'Failed', 'Undone', 'UndoFailed') and begins = 0
	union all
	select 'G5b', s.saga, s.n, s.what, s.step || ' begins while ' || o.step || ' has not ended well'
	from stepped s join steps o on o.saga = s.saga and o.began < s.n
	where s.what = 'Began' and s.begins = 0 and (o.done is null or o.done > s.n)
		and not (s.step in ('reserve+a', 'reserve+b') and o.step in ('reserve+a', 'reserve+b')) -- which are done side by side
	union all
	select case
			when f.compensating then 'G5a'
			when f.cancelled and not f.pivoted then 'G8a'
			when s.over then 'G1a'
			when s.attempt <> s.attempt_last + 1 then 'G2'
			when s.not_before > s.at then 'G10'
			else 'G1a'
		end, s.saga, s.n, s.what, s.step || case
			when f.compensating then ' begins though the saga is undone'
			when f.cancelled and not f.pivoted then ' begins though the saga is cancelled'
			when s.over then ' begins though it has ended'
			when s.attempt <> s.attempt_last + 1 then ' begins attempt ' || s.attempt || ' after ' || s.attempt_last
			when s.not_before > s.at then ' begins before its time'
			else ' begins again, and is waiting'
		end
	from stepped s join folded f on f.saga = s.saga and f.n = s.n
	where s.what = 'Began' and (
		f.compensating or f.cancelled and not f.pivoted or s.over or s.attempt <> s.attempt_last + 1 or s.not_before > s.at and not f.jumped
		or s.step_kind = 'ask' and s.attempt_last > 0 and not s.failed and not (s.epoch > 0 and not s.begun)
	)
	union all
	select 'G1a', saga, n, what, step || ' has ended before' from stepped where what in ('Done', 'Failed') and begins > 0 and over
	union all
	select 'G2', saga, n, what, 'attempt ' || attempt || ' of ' || step || ' has failed, and ' || attempt_last || ' is under way' from stepped
	where what = 'Failed' and begins > 0 and not over and attempt <> attempt_last
	union all
	select 'G10', s.saga, s.n, s.what, s.step || ' has no reply before its time' from stepped s join folded f on f.saga = s.saga and f.n = s.n
	where s.what = 'Failed' and s.begins > 0 and not s.over and s.attempt = s.attempt_last and s.step_kind = 'ask' and coalesce(s.retry_at, 0) = 0 and s.at < s.reply_by_last and not f.jumped
	union all
	select 'G6', saga, n, type, 'the saga is undone already' from folded where type = 'Compensating' and compensating
	union all
	select 'G2', saga, n, type, 'the saga is behind its pivot' from folded where type = 'Compensating' and pivoted
	union all
	select 'G10', saga, n, type, 'the deadline is ' || ((deadline - at) / 1000) || ' ms later' from folded
	where type = 'Compensating' and not pivoted and reason = 'the deadline is over' and at < deadline and not jumped
	union all
	select 'G6', s.saga, s.n, s.what, 'nothing asked for that' from stepped s join folded f on f.saga = s.saga and f.n = s.n where s.what = 'Undone' and not f.compensating
	union all
	select 'G6', s.saga, s.n, s.what, s.step || ' is undone twice' from stepped s join steps o on o.saga = s.saga and o.step = s.step where s.what = 'Undone' and o.undone_n < s.n
	union all
	select 'G6', s.saga, s.n, s.what, s.step || ' is undone before ' || l.step || ', which began later'
	from stepped s join steps o on o.saga = s.saga and o.step = s.step join steps l on l.saga = s.saga and l.began > o.began and l.began < s.n
	where s.what = 'Undone' and (l.undone_n is null or l.undone_n > s.n)
	union all
	select 'G5b', f.saga, f.n, f.type, o.step || ' has not ended well' from folded f join steps o on o.saga = f.saga where f.type = 'Completed' and (o.done is null or o.done > f.n)
	union all
	select 'G2', saga, n, type, 'it has done ' || coalesce(got, 'nothing') || ', and wants ' || coalesce(want, 'nothing')
	from (
		select f.saga, f.n, f.type, i.input,
			(select group_concat(o.step, ' ') from (select step from steps o where o.saga = f.saga order by step) o) as got,
			(select group_concat(w.step, ' ') from (
				select 'reserve+' || l.value as step from json_each('[0,1,2,3]') l where l.value < i.input ->> 'lines'
				union all select e.value from json_each('["reserve+a","reserve+b"]') e where i.input ->> 'beside'
				union all select 'pay' where i.input ->> 'pay' union all select 'ship' where i.input ->> 'ship' union all select 'seal' where i.input ->> 'seal'
				union all select 'approve' where i.input ->> 'approve' union all select 'book' where i.input ->> 'pivot' union all select 'pay+last' where i.input ->> 'last'
				order by 1
			) w) as want
		from folded f join (select saga, data -> 'input' as input from story where n = 0) i on i.saga = f.saga
		where f.type = 'Completed'
	)
	where got is not want or input ->> 'fail' and not input ->> 'pivot'
	union all
	select 'G6', saga, n, type, 'it is undone' from folded where type = 'Completed' and compensating
	union all
	select 'G8a', saga, n, type, 'it was cancelled' from folded where type = 'Completed' and cancelled and not pivoted
	union all
	select 'G6', f.saga, f.n, f.type, o.step || ' is not undone' from folded f join steps o on o.saga = f.saga where f.type = 'Compensated' and (o.undone_n is null or o.undone_n > f.n)
	union all
	select 'G6', saga, n, type, 'nothing asked for that' from folded where type = 'Compensated' and not compensating;

-- The calls of functions and undos in sagas that have ended, and for how long their processes were stopped.
drop table if exists called;
create table called as
	select c.process, c.op, c.call, c.at, c.answer, cast(c.asked ->> 'saga' as text) as saga, cast(c.asked ->> 'step' as text) as step, coalesce(c.asked ->> 'note', '') = 'tx' as tx
	from calls c
	where c.call in ('do', 'undo');
create index called_saga on called (saga, step);
create index stops_process on faults (process, what);
analyze;
