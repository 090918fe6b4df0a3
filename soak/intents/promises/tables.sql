-- What several promises look at. What is taken from JSON is cast: an index serves no comparison with a column of another type.

drop table if exists asks;
create table asks as -- the calls of clients, and what they were told
	select c.process, c.op, c.call, c.at, c.ended, c.answer, cast(coalesce(c.asked ->> 'stream', '') as text) as stream, cast(coalesce(c.asked ->> 'session', '') as text) as session,
		coalesce(c.asked ->> 'other', 0) as other, cast(coalesce(c.asked ->> 'result', '') as text) as wanted, cast(coalesce(c.asked ->> 'token', 0) as integer) as token,
		cast(coalesce(c.told ->> 'result', '') as text) as result, cast(coalesce(c.told ->> 'by', 0) as integer) as by_token, cast(coalesce(c.told ->> 'bySession', '') as text) as by_session,
		cast(coalesce(c.told ->> 'on', c.asked ->> 'stream', '') as text) as about, coalesce(c.told ->> 'note', '') as note
	from calls c
	where c.call in ('reserve', 'extend', 'confirm', 'transact', 'release', 'resume', 'await', 'force', 'work');
create unique index asks_call on asks (process, op);
create index asks_session on asks (session);
create index asks_stream on asks (call, stream);

drop table if exists keys;
create table keys as -- of each call, with the token that it has, or was given
	select a.process, a.op, a.stream, cast(case a.call when 'reserve' then coalesce(c.told ->> 'token', 0) else a.token end as integer) as token
	from asks a join calls c on c.process = a.process and c.op = a.op
	union all
	select a.process, a.op, cast(k.value ->> 'stream' as text), cast(coalesce(case a.call when 'reserve' then c.told ->> ('$.with[' || k.key || '].token') else k.value ->> 'token' end, 0) as integer)
	from asks a join calls c on c.process = a.process and c.op = a.op, json_each(c.asked, '$.with') k;
create index keys_call on keys (process, op);
create index keys_token on keys (stream, token);

drop table if exists losses;
create table losses as select at as since, ended as until from calls where call = 'failover' and asked ->> 'target' = 'async'; -- in which writes may be undone

drop table if exists stops;
create table stops as select cast(asked ->> 'target' as text) as process, at as since, ended as until from calls where call = 'stop';

-- The messages of intents, each with the number of its lease, what was before it, and when the lease had its last sign of life.
drop table if exists parsed;
create table parsed as
	select m.stream, m.position, m.type, m.at, cast(m.data ->> 'session' as text) as session, m.data ->> 'attempt' as attempt, m.data ->> 'ttl' as ttl, m.data ->> 'content' as content,
		json(coalesce(m.data -> 'line', '[]')) as line, cast(coalesce(m.data ->> 'token', 0) as integer) as token, cast(coalesce(m.data ->> 'after', 0) as integer) as after, m.data ->> 'at' as since_said,
		coalesce(m.data ->> 'released', 0) as released_said, cast(coalesce(m.data ->> 'by', '') as text) as by, cast(coalesce(m.data ->> 'result', '') as text) as result,
		cast(sum(m.type = 'Reserved') over w as integer) as lease, row_number() over w - 1 as place, lag(m.at) over w as at_before,
		coalesce(sum(m.type = 'Confirmed') over (partition by m.stream order by m.position rows between unbounded preceding and 1 preceding), 0) > 0 as done_before,
		case when m.type in ('Reserved', 'Extended', 'Released') then m.at when m.type = 'Waiting' and x.moved then m.data ->> 'at' end as sign
	from messages m, limits x
	window w as (partition by m.stream order by m.position);

drop table if exists folded;
create table folded as
	select q.*, lag(q.since) over (partition by q.stream order by q.position) as since_before, lag(q.line) over (partition by q.stream order by q.position) as line_before
	from (
		select p.*, max(p.sign) over (partition by p.stream, p.lease, p.signs) as since,
			coalesce(sum(p.type = 'Released') over (partition by p.stream, p.lease order by p.position rows between unbounded preceding and 1 preceding), 0) > 0 as released_before
		from (select p.*, count(p.sign) over (partition by p.stream, p.lease order by p.position) as signs from parsed p) p
	) q;
create index folded_lease on folded (stream, lease, type);

drop table if exists leases;
create table leases as
	select f.stream, f.lease, cast(max(f.after + 1, f.at) as integer) as token, f.session, f.attempt, f.ttl, f.content, f.at,
		(select max(r.at) from folded r where r.stream = f.stream and r.lease = f.lease and r.type = 'Released') as released,
		(select r.by from folded r where r.stream = f.stream and r.lease = f.lease and r.type = 'Released' and r.by <> '') as by,
		(select r.since from folded r where r.stream = f.stream and r.lease = f.lease order by r.position desc limit 1) as since,
		(select max(r.at) from folded r where r.stream = f.stream and r.lease = f.lease and r.type = 'Confirmed') as confirmed,
		lead(f.at) over (partition by f.stream order by f.lease) as taken,
		lead(f.session) over (partition by f.stream order by f.lease) as taker
	from folded f
	where f.type = 'Reserved';
alter table leases add column ended integer; -- when it was confirmed, or another came after it
alter table leases add column free integer;  -- since then nobody has it
update leases set ended = coalesce(confirmed, taken, (select never from limits)), free = coalesce(released, since + ttl * 1000);
create unique index leases_number on leases (stream, lease);
create index leases_token on leases (stream, token);
create index leases_session on leases (session);

drop table if exists signs;
create table signs as select stream, lease, at from folded where type in ('Reserved', 'Extended');
create index signs_lease on signs (stream, lease, at);

drop table if exists done;
create table done as -- the confirmation of each intent that has one
	select f.stream, l.lease, l.token, l.session, f.at, f.result
	from (select f.*, max(f.position) over (partition by f.stream) as last from folded f where f.type = 'Confirmed') f join leases l on l.stream = f.stream and l.lease = f.lease
	where f.position = f.last;
create unique index done_stream on done (stream);

drop table if exists contents;
create table contents as select session, max(other) as other, min(at) as began from asks where call = 'reserve' group by session;
create unique index contents_session on contents (session);
analyze;

-- What in a stream does not follow from what is before it.
drop table if exists breaches;
create table breaches as
	with changed as (
		select f.*, m.moved, m.turn, m.served, l.token as lease_token, l.session as lease_session, l.attempt as lease_attempt, l.ttl as lease_ttl, l.content as lease_content,
			m.moved and f.type = 'Waiting' and f.since_said < f.since_before as set_back
		from folded f left join leases l on l.stream = f.stream and l.lease = f.lease, limits m
	), taken as ( -- grants, each with the lease before it
		select c.*, p.token as token_before, p.attempt as attempt_before, p.content as content_before, p.session as session_before, p.released,
			-- a lease is over at its release, or when it has had no sign of life for its time
			case when p.released is not null and p.released <= c.at then p.released else c.since_before + p.ttl * 1000 end as free_before,
			coalesce((select i.key from json_each(c.line_before) i where i.value = c.session), json_array_length(c.line_before), 0) as waited,
			coalesce((
				select json_group_array(r.value) from (select r.value from json_each(c.line_before) r, json_each(c.line_before) i where i.value = c.session and r.key > i.key order by r.key) r
			), '[]') as rest
		from changed c left join leases p on p.stream = c.stream and p.lease = c.lease - 1
		where c.type = 'Reserved'
	)
	select 'L3a' as rule, stream, position, type, at, session, line, line_before, 'it is in place ' || place as finding from changed where position <> place
	union all
	select 'L3a', stream, position, type, at, session, line, line_before, 'it is ' || (at_before - at) || ' us before the message that it follows' from changed where not moved and at < at_before
	union all
	select 'L3a', stream, position, type, at, session, line, line_before, 'it follows a confirmation' from changed where done_before
	union all
	select 'L5', stream, position, type, at, session, line, line_before, 'a key that is done is reserved again' from changed where done_before and type = 'Reserved'
	union all
	select 'L3a', stream, position, type, at, session, line, line_before, case
			when lease = 0 then 'there is no lease'
			when token <> lease_token then 'token ' || token || ' is not that of the lease, ' || lease_token
			else 'the lease has changed'
		end
	from changed
	where type <> 'Reserved' and (lease = 0 or token <> lease_token or session <> lease_session or attempt <> lease_attempt or ttl <> lease_ttl or content <> lease_content)
	union all
	select 'L3a', stream, position, type, at, session, line, line_before, 'the lease was released' from changed where type not in ('Reserved', 'Waiting') and lease > 0 and released_before
	union all
	select 'L3a', stream, position, type, at, session, line, line_before, 'a line does not change the lease'
	from changed
	where type = 'Waiting' and lease > 0 and (since_said <> since_before and not set_back or released_said <> released_before)
	union all
	select 'L3a', stream, position, type, at, session, line, line_before, 'there is no such type' from changed where type not in ('Reserved', 'Extended', 'Released', 'Confirmed', 'Waiting')
	union all
	select 'L1', stream, position, type, at, session, line, line_before, 'token ' || lease_token || ', after ' || after || ', follows ' || coalesce(token_before, 0)
	from taken
	where lease_token <= coalesce(token_before, 0) or after <> coalesce(token_before, 0)
	union all
	select 'L1', stream, position, type, at, session, line, line_before, 'attempt ' || attempt || ' follows ' || coalesce(attempt_before, 0) from taken where attempt <> coalesce(attempt_before, 0) + 1
	union all
	select 'L3a', stream, position, type, at, session, line, line_before, 'the content is another, and nothing was released' from taken where released is null and content <> content_before
	union all
	select 'L2a', stream, position, type, at, session, line, line_before, (free_before - at) || ' us before the lease of ' || session_before || ' was over'
	from taken
	where released is null and not moved and at < free_before
	union all
	select 'waiters', stream, position, type, at, session, line, line_before, 'after the line ' || coalesce(line_before, '[]') || ' comes ' || line from taken where line <> rest
	union all
	select 'waiters', stream, position, type, at, session, line, line_before, (free_before + waited * turn - at) || ' us before its turn, after ' || waited || ' in the line'
	from taken
	where not moved and waited > 0 and at < free_before + waited * turn
	union all
	-- A session comes behind the others, or sessions of one process leave together, and the others keep their order.
	select 'waiters', stream, position, type, at, session, line, line_before, 'the line ' || line_before || ' becomes ' || line
	from changed
	where lease > 0 and (
		type in ('Extended', 'Released') and line <> line_before
		or type = 'Waiting' and not (set_back and line = line_before)
			and not (json_array_length(line) = json_array_length(line_before) + 1 and json_remove(line, '$[#-1]') = line_before)
			and not (
				json_array_length(line) < json_array_length(line_before)
				and line = (select json_group_array(b.value) from json_each(line_before) b where b.value in (select a.value from json_each(line) a))
				and 1 = ( -- of one that serves the store, any
					select case when served then 1 else count(distinct substr(b.value, 1, instr(b.value || '/', '/'))) end from json_each(line_before) b where b.value not in (select a.value from json_each(line) a)
				)
			)
	);

-- The streams that a session has written to which had met what was undone, at a version that was there again: a lossy
-- failover gives versions out twice, and the version is all that the store compares. They are counted, and nothing else is
-- said of them.
drop table if exists strayed;
create table strayed as
	select distinct b.stream
	from breaches b join losses l on l.until < b.at
	where exists (
		select 1 from contents c
		where c.began <= l.until and (
			c.session = b.session or b.type = 'Waiting' and (c.session in (select value from json_each(b.line)) or c.session in (select value from json_each(b.line_before)))
		)
	);

-- The tokens without a grant that may be of grants which a failover undid: a token is about the time of its grant.
drop table if exists undone;
create table undone as
	select u.process, u.op, u.stream, u.token
	from (
		select k.process, k.op, k.stream, k.token from keys k join asks a on a.process = k.process and a.op = k.op
		where a.call in ('extend', 'resume', 'release', 'confirm', 'transact') or a.call = 'reserve' and a.answer = 'reserved' or a.call = 'work' and a.answer = 'ok'
		union
		select process, op, about, by_token from asks where call = 'reserve' and answer in ('held', 'reused') or answer = 'lost' and by_token > 0
		union
		select null, null, stream, token from writes
	) u join losses l on u.token between l.since and l.until
	where u.stream not in (select stream from strayed) and not exists (select 1 from leases g where g.stream = u.stream and g.token = u.token);
create index undone_token on undone (stream, token);
create index undone_call on undone (process, op);

drop table if exists seen;
create table seen as -- the calls that are looked at, and whether a failover may explain what they were told
	select a.*, exists (select 1 from losses l where l.since <= a.ended and a.at <= l.until) as lossy
	from asks a
	where not exists (select 1 from keys k join strayed s on s.stream = k.stream where k.process = a.process and k.op = a.op);
create unique index seen_call on seen (process, op);
create index seen_kind on seen (call, answer);

-- Each key of a call with its lease, if its token has one, and whether that gave a sign of life meanwhile.
drop table if exists steps;
create table steps as
	select a.process, a.op, a.call, a.answer, a.session, a.wanted, a.at, a.ended, k.stream, k.token, g.lease, g.session as holder, g.released, g.at as granted,
		min(g.ended, coalesce(g.released, g.ended)) as over, d.lease = g.lease and d.result = a.wanted as confirmed,
		x.moved or exists (select 1 from signs s where s.stream = g.stream and s.lease = g.lease and s.at between a.at and a.ended) as signed,
		exists (select 1 from undone u where u.process = a.process and u.op = a.op) as undone
	from seen a join keys k on k.process = a.process and k.op = a.op left join leases g on g.stream = k.stream and g.token = k.token left join done d on d.stream = k.stream, limits x
	where a.call in ('extend', 'resume', 'release', 'confirm', 'transact') or a.call = 'reserve' and a.answer = 'reserved';
create index steps_call on steps (process, op);

-- Answers that are not of a moment of their calls, by the rule that they break.
drop table if exists answers;
create table answers as
	with told as ( -- of a grant of another session
		select a.*, g.session as holder, g.released, g.confirmed, x.moved or g.at <= a.ended and g.ended >= a.at as live, c.other as content,
			exists (select 1 from undone u where u.process = a.process and u.op = a.op) as undone
		from seen a left join leases g on g.stream = a.about and g.token = a.by_token left join contents c on c.session = g.session, limits x
		where a.call = 'reserve' and a.answer in ('held', 'reused')
	), over as ( -- told that it is done
		select a.*, d.token as done_token, d.result as done_result, c.other as content, d.stream is not null and (x.moved or d.at <= a.ended) as done
		from seen a left join done d on d.stream = a.about left join contents c on c.session = d.session, limits x
		where a.call in ('reserve', 'await') and a.answer = 'done'
	), lost as (
		select s.process, s.op, max(s.over <> x.never and (s.over <= s.ended or x.moved) or exists (select 1 from losses l where l.since <= s.ended and s.granted <= l.until)) as is_lost,
			sum(s.confirmed) as confirmed
		from steps s, limits x
		where s.answer = 'lost'
		group by s.process, s.op
		having not max(s.undone) and count(s.lease) = count(*)
	)
	select 'L2b' as rule, process, op, 'no grant of ' || stream || ' has token ' || token as finding from steps
	where not undone and (lease is null or call = 'reserve' and holder <> session)
	union all
	select 'L2b', process, op, stream || ' was neither granted nor extended meanwhile' from steps
	where not undone and not signed and (call = 'reserve' and holder = session or call in ('extend', 'resume') and answer = 'ok' and lease is not null)
	union all
	select 'L2b', process, op, stream || ' is not released' from steps where not undone and call = 'release' and answer = 'ok' and lease is not null and released is null
	union all
	select 'L5', process, op, wanted || ' with token ' || token || ' of ' || stream || ' is not there' from steps
	where not undone and call in ('confirm', 'transact') and answer = 'ok' and lease is not null and confirmed is not 1
	union all
	select 'L2b', process, op, about || ' is said to be ' || answer || ' by ' || by_session || ' with token ' || by_token from told
	where not undone and (holder is null or holder <> by_session or not live and (answer = 'held' or confirmed is null))
	union all
	select 'L2b', process, op, 'the content of the holder ' || by_session || ' is another, or not, than is told' from told
	where holder = by_session and (answer = 'held' and released is null and content <> other or answer = 'reused' and content = other)
	union all
	select 'L2b', process, op, about || ' is not done' from over where not done
	union all
	select 'L2b', process, op, 'the result ' || result || ' of token ' || by_token || ' is ' || done_result || ' of ' || done_token from over where done and (result <> done_result or by_token <> done_token)
	union all
	select 'L2b', process, op, 'what is done has other content' from over where done and call = 'reserve' and content <> other
	union all
	select 'L2b', process, op, 'it ended with a lease' from seen where call = 'await' and answer = 'held'
	union all
	select 'L2b', a.process, a.op, 'it was not free meanwhile'
	from seen a, limits x
	where a.call = 'await' and a.answer = 'free' and not x.moved and not exists (
		-- A read takes no lock: a message has the time of its lock, and is there for a read when its transaction has committed.
		select 1 from leases g
		where g.stream = a.stream and g.free <= a.ended and a.at <= case
				when g.confirmed is not null then g.confirmed + x.written
				else coalesce((select max(r.ended) from asks r where r.session = g.taker and r.call = 'reserve' and g.taken between r.at and r.ended), g.ended)
			end
			and g.free <= case when g.confirmed is not null then g.confirmed + x.written else coalesce((select max(r.ended) from asks r where r.session = g.taker and r.call = 'reserve' and g.taken between r.at and r.ended), g.ended) end
		union all
		select 1 from (
			select s.at, lead(s.at) over (partition by s.lease order by s.at) as next, g.ttl
			from (select lease, at from signs where stream = a.stream union all select lease, released from leases where stream = a.stream and released is not null) s
				join leases g on g.stream = a.stream and g.lease = s.lease
		) s
		where s.at + s.ttl * 1000 <= s.next + x.written and s.at + s.ttl * 1000 <= a.ended and a.at <= s.next + x.written
	)
	union all
	select 'L2b', a.process, a.op, 'it was not released'
	from seen a, limits x
	where a.call = 'force' and a.answer = 'ok' and not exists (
		select 1 from leases g where g.stream = a.stream and g.released is not null and (x.moved or g.released <= a.ended and g.ended + x.written >= a.at)
	)
	union all
	select 'L2b', a.process, a.op, 'it is not done'
	from seen a, limits x
	where a.call = 'force' and a.answer = 'done' and not exists (select 1 from done d where d.stream = a.stream and (x.moved or d.at <= a.ended))
	union all
	select 'L3b', process, op, 'nothing came after its token' from lost where not is_lost
	union all
	select 'L3b', l.process, l.op, a.wanted || ' is confirmed' from lost l join seen a on a.process = l.process and a.op = l.op where l.confirmed > 0 and a.call in ('confirm', 'transact')
	union all
	select 'L3b', a.process, a.op, 'token ' || a.by_token || ', that came after it, is nowhere'
	from lost l join seen a on a.process = l.process and a.op = l.op
	where a.by_token <> 0 and not exists (select 1 from leases g where g.stream = a.about and g.token = a.by_token)
	union all
	select 'L2b', a.process, a.op, 'no grant has token ' || a.token
	from seen a, limits x
	where a.call = 'work' and a.answer = 'ok' and not x.moved and not exists (select 1 from leases g where g.stream = a.stream and g.token = a.token)
		and not exists (select 1 from undone u where u.process = a.process and u.op = a.op)
		and not exists (select 1 from losses l where l.since <= a.ended and a.at - 2 * x.ttl <= l.until);

delete from counted;
insert into counted
	-- work that began behind its lease, in a process that was stopped
	select 'paused', count(*)
	from seen a join leases g on g.stream = a.stream and g.token = a.token, limits x
	where a.call = 'work' and a.answer = 'ok' and not x.moved and not a.lossy
		and a.ended > x.ttl + coalesce((select max(s.at) from signs s where s.stream = g.stream and s.lease = g.lease and s.at <= a.ended), 0)
	union all
	select 'undone', (select count(*) from undone) + (select count(*) from answers w join seen a on a.process = w.process and a.op = w.op where a.lossy)
	union all
	select 'above', count(*)
	from asks a join keys k on k.process = a.process and k.op = a.op join (select distinct stream, token from undone) u on u.stream = k.stream join losses l on u.token between l.since and l.until and l.until < a.at
	where a.call = 'reserve' and a.answer = 'reserved'
	union all
	select 'strayed', count(*) from strayed;
