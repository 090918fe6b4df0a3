-- What several promises look at. What is taken from JSON is cast: an index serves no comparison with a column of another type.

create index if not exists messages_place on messages (stream, place);
create index if not exists messages_id on messages (id);
create index if not exists rows_item on rows (position);
create index if not exists log_item on log (position, version);
create index if not exists effects_item on effects (position, version);
create index if not exists inserted_call on inserted (process, op);
create index if not exists inserted_id on inserted (id);

drop table if exists given;
create table given as -- each item that a take was given
	select cast(i.value ->> 'p' as integer) as position, cast(i.value ->> 'v' as integer) as version, coalesce(i.value ->> 'f', 0) as failures,
		cast(i.value ->> 'id' as text) as id, cast(i.value ->> 'stream' as text) as stream, cast(coalesce(c.asked ->> 'session', 0) as integer) as session,
		cast(coalesce(c.asked ->> 'lease', 0) as integer) as lease, c.process, c.at, c.ended
	from calls c, json_each(c.told, '$.items') i
	where c.call = 'take';
create index given_item on given (position, version);
create index given_lease on given (lease, at);

drop table if exists resumed;
create table resumed as -- the sessions of earlier attempts at a take
	select cast(c.asked ->> 'session' as integer) as session, cast(r.value as integer) as earlier from calls c, json_each(c.asked, '$.resume') r where c.call = 'take';
create index resumed_session on resumed (session, earlier);

drop table if exists received;
create table received as -- the calls of those who receive, until their process was killed; each has a lease of its own
	select c.process, c.op, cast(c.asked ->> 'lease' as integer) as lease, c.answer, c.at,
		min(c.ended, coalesce((select k.at from calls k where k.call = 'kill' and k.asked ->> 'target' = c.process), x.never)) as ended
	from calls c, limits x
	where c.call = 'receive';
create index received_lease on received (lease);

drop table if exists told;
create table told as -- the deliveries that they were told of
	select cast(i.value ->> 'p' as integer) as position, cast(i.value ->> 'v' as integer) as version, c.process, c.at, c.ended from calls c, json_each(c.told, '$.items') i where c.call = 'receive';
create index told_item on told (position, version);

drop table if exists asks;
create table asks as -- what they and handlers asked for a delivery, and were told
	select c.process, c.call, cast(c.asked ->> '$.ends[0].p' as integer) as position, cast(c.asked ->> '$.ends[0].v' as integer) as version, c.asked ->> '$.ends[0].k' as kind, c.answer, c.at, c.ended
	from calls c
	where c.call in ('complete', 'settle', 'prolong');
create index asks_item on asks (position, version);

drop table if exists ends;
create table ends as -- each delivery that a take ended, and what it was told: d done, l lost, o out
	select cast(e.value ->> 'p' as integer) as position, cast(e.value ->> 'v' as integer) as version, e.value ->> 'k' as kind, coalesce(e.value ->> 'd', 0) as delay, coalesce(e.value ->> 'is', '') as told,
		c.answer, c.at, c.ended
	from calls c, json_each(case c.answer when 'ok' then c.told else c.asked end, '$.ends') e
	where c.call = 'take';
create index ends_item on ends (position, version);

drop table if exists handled;
create table handled as -- by callers of Complete, in transactions, and by handlers until their contexts ended
	select c.call, cast(c.asked ->> '$.ends[0].p' as integer) as position, cast(c.asked ->> '$.ends[0].v' as integer) as version, c.process, c.answer, c.at, c.ended
	from calls c
	where c.call in ('complete', 'finish', 'handle');
create index handled_item on handled (call, position, version);

drop table if exists sent;
create table sent as -- each item that a call asked to insert
	select c.process, c.op, c.call, i.key as i, cast(i.value ->> 'id' as text) as id, cast(i.value ->> 'stream' as text) as stream, coalesce(i.value ->> 'n', 0) as n,
		coalesce(i.value ->> 'unique', 0) as named, coalesce(i.value ->> 'back', 0) as back, i.value ->> 'until' as until,
		c.at, c.ended, c.answer, cast(coalesce(c.told ->> 'had', 0) as integer) as had, coalesce(c.told ->> 'sent', 0) as sent, coalesce(c.asked ->> 'note', '') as note
	from calls c, json_each(c.asked, '$.new') i
	where c.call in ('insert', 'unique', 'stage');
create index sent_id on sent (id);
create index sent_call on sent (call, process, op);

drop table if exists spans;
create table spans as -- in which the server was down, its clock off, or the queue paused
	select 'outage' as what, c.at as since, c.ended as until, 0 as off from calls c where c.call = 'kill' and c.asked ->> 'target' = 'server'
	union all
	select 'jump', c.at, c.ended, c.asked ->> 'off' from calls c where c.call = 'jump'
	union all
	select 'pause', p.paused, p.at, 0
	from (
		select c.at, c.asked ->> 'note' as note, lag(c.ended) over w as paused, lag(c.asked ->> 'note') over w as before
		from calls c
		where c.call = 'change' and (c.asked ->> 'note' = 'resume' or c.asked ->> 'note' = 'pause' and c.answer = 'ok')
		window w as (order by c.at)
	) p
	where p.note = 'resume' and p.before = 'pause';

drop table if exists heard;
create table heard as -- when the store may have heard of a session last, and its lease
	select cast(s.session as integer) as session, max(case s.ended when (select never from limits) then s.at else s.ended end) as last, max(s.lease) as lease
	from (
		select coalesce(c.asked ->> 'session', 0) as session, coalesce(c.asked ->> 'lease', 0) as lease, c.at, c.ended from calls c where c.call in ('take', 'extend', 'leave')
		union all
		select coalesce(c.asked ->> 'next', 0), coalesce(c.asked ->> 'lease', 0), c.at, c.ended from calls c where c.call = 'leave'
	) s
	group by s.session;
create unique index heard_session on heard (session);

-- The lines of the logs, numbered, and with the time as it was: while the server's clock was off it dated them wrong.
drop table if exists lines;
create table lines as
	select l.position, cast(row_number() over (partition by l.position order by l.version) - 1 as integer) as n, l.version, l.what, l.session,
		coalesce((select l.at - j.off from spans j where j.what = 'jump' and l.at - j.off between j.since and j.until limit 1), l.at) as at
	from log l;
create unique index lines_item on lines (position, n);
create index lines_end on lines (what, session, at);

delete from sorts;
insert into sorts select l.what, count(*) from log l group by l.what;

drop table if exists accepted;
create table accepted as -- the versions under which an item was completed
	select e.position, e.version from ends e where e.kind in ('c', 't') and e.told = 'd' and e.answer = 'ok'
	union
	select x.position, x.version from effects x;
create index accepted_item on accepted (position, version);

drop table if exists items;
create table items as
	select m.*, r.version, r.state, r.failures, r.session, r.after, coalesce(r.state in ('d', 'k'), 0) as dead,
		cast((select count(*) from lines l where l.position = m.position) as integer) as lines,
		-- by an operator, or because its message was removed
		(select l.what in ('C', 'D', 'M') from lines l where l.position = m.position order by l.n desc limit 1) is true as ended,
		exists (select 1 from lines l where l.position = m.position and l.what = 'R') as redriven,
		coalesce((select min(s.at) from sent s where s.id = m.id), 0) as asked,
		cast((select b.position from messages b where b.stream = m.stream and b.place = m.place - 1) as integer) as before -- of its key
	from messages m left join rows r on r.position = m.position;
create unique index items_position on items (position);
create index items_place on items (stream, place);
create index items_id on items (id);

-- The earliest moment at which an item may have been finished or dead, and that at which an operator ended it.
drop table if exists closed;
create table closed as
	select i.position, i.before, i.stream, i.place,
		min(
			coalesce((select min(e.at) from ends e where e.position = i.position and e.kind = 'c' and (e.told = 'd' and e.answer = 'ok' or e.version = i.lines and e.answer <> 'ok')), x.never),
			coalesce((select min(f.at) from handled f join effects y on y.position = f.position and y.version = f.version where f.call = 'finish' and f.position = i.position), x.never),
			coalesce((
				select min(l.at)
				from (select l.what, l.at, sum(l.what in ('r', 'x', 'e')) over (order by l.n) as failures from lines l where l.position = i.position) l
				where l.what in ('x', 'M') or l.what in ('r', 'e') and l.failures >= x.max_failures
			), x.never)
		) as at,
		coalesce((select min(l.at) from lines l where l.position = i.position and l.what in ('C', 'D')), x.never) as cancelled
	from items i, limits x;
create unique index closed_position on closed (position);
create index closed_before on closed (before);
analyze;
