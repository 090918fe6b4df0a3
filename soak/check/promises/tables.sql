-- What several promises look at. What is taken from JSON is cast: an index serves no comparison with a column of another type.

create index if not exists messages_id on messages (id);
create index if not exists messages_stream on messages (stream, position);
create index if not exists messages_category on messages (category, global);
create index if not exists messages_slot on messages (category, slot, global);
create index if not exists messages_effect on messages (effect) where effect <> '';
delete from counts;

---- Faults

drop table if exists faults;
create table faults as -- of the nemesis, while they lasted
	select rowid as o, cast(asked ->> 'name' as text) as name, cast(coalesce(asked ->> 'target', '') as text) as target, at, ended
	from calls where call = 'fault';

drop table if exists failovers;
create table failovers as -- each loss of a primary, or of the messages since a backup, in which acknowledged messages may be lost
	select row_number() over (order by at) as f, rowid as o, process || ':' || op as name, cast(coalesce(asked ->> 'name', '') as text) as way, at, ended, told
	from calls where call = 'failover';

---- Writes

drop table if exists parts;
create table parts as -- what a write, or a question for its outcome, has for one stream
	select c.rowid as o, c.process || ':' || c.op as name, a.key as part, json_array_length(c.asked, '$.appends') as parts, c.call, c.answer, c.at, c.ended,
		case
			when c.answer in ('ok', 'written') then 'yes'
			when c.answer in ('', 'unknown') or c.call = 'resolve' and c.answer <> 'not-written' then 'unknown'
			else 'no'
		end as outcome,
		cast(a.value ->> 'stream' as text) as stream, substr(a.value ->> 'stream', 1, instr(a.value ->> 'stream' || '-', '-') - 1) as category,
		coalesce(a.value ->> 'expected', 0) as expected, coalesce(json_array_length(a.value, '$.messages'), 0) as n,
		coalesce(t.value ->> 'version', 0) as version, coalesce(t.value ->> 'global', 0) as global, coalesce(t.value ->> 'duplicate', 0) as duplicate
	from calls c, json_each(c.asked, '$.appends') a left join json_each(c.told, '$.appends') t on t.key = a.key and c.answer in ('ok', 'written')
	where c.call in ('write', 'write-tx', 'resolve');
create index parts_of on parts (o, part);

drop table if exists kept;
create table kept as -- up to which global position each kept each category
	select f.f, c.category, coalesce((select h.value from json_each(f.told, '$.heads') h where h.key = c.category), 0) as head, f.at, f.ended
	from failovers f, (
		select category from messages
		union select cast(asked ->> 'category' as text) from calls where call = 'run'
		union select category from parts
	) c;
create unique index kept_of on kept (f, category);
create index kept_category on kept (category);

drop table if exists sent;
create table sent as -- each message of a part, and the message that there is with its id
	select p.rowid as p, p.o, m.key as n, cast(m.value ->> 'id' as text) as id, coalesce(m.value ->> 'value', 0) as value, coalesce(m.value ->> 'hash', 0) as hash,
		(select t.rowid from messages t where t.id = cast(m.value ->> 'id' as text) order by t.global limit 1) as message
	from parts p join calls c on c.rowid = p.o, json_each(c.asked, '$.appends[' || p.part || '].messages') m;
create index sent_p on sent (p, n);
create index sent_id on sent (id);
create index sent_message on sent (message);

drop table if exists found;
create table found as -- what was found out about a write of unknown outcome
	select w.rowid as o, r.answer
	from calls r join calls w on w.process = cast(r.asked ->> '$.ref.process' as text) and w.op = cast(r.asked ->> '$.ref.op' as integer)
	where r.call = 'resolve' and r.answer in ('written', 'not-written', 'id-conflict');
create index found_of on found (o);

drop table if exists undone;
create table undone as -- each acknowledged message that a failover undid, as it may, whether or not it was written again
	select distinct s.rowid as s, p.o, s.id, p.at, p.ended
	from kept k join parts p on p.category = k.category join sent s on s.p = p.rowid
		left join messages m on m.rowid = s.message
		left join sent l on l.p = p.rowid and l.n = p.n - 1 left join messages z on z.rowid = l.message
	where p.outcome = 'yes' and p.ended > k.at and p.at < k.ended and not (p.global <> 0 and p.global <= k.head)
		and (m.rowid is null
			-- An answer before the failover was over came from the old primary.
			or m.global > k.head and (p.ended < k.ended or z.position is not p.version or p.global <> 0 and p.global <> z.global));
create index undone_of on undone (s);

drop table if exists claims;
create table claims as -- each write that may have written a message: it was told so, or nobody knows
	select s.message, s.rowid as s, s.p, p.o, p.at, p.outcome = 'yes' as sure, m.value = s.value and m.hash = s.hash and m.stream = p.stream as same,
		p.expected in (-2, m.position - s.n - 1) as fits
	from sent s join parts p on p.rowid = s.p join messages m on m.rowid = s.message
	where p.call <> 'resolve' and (
		p.outcome = 'yes' and not p.duplicate and not exists (select 1 from undone u where u.s = s.rowid)
		or p.outcome = 'unknown'
			and not exists (select 1 from found f where f.o = p.o and f.answer in ('not-written', 'id-conflict'))
			and not exists (select 1 from sent t join parts q on q.rowid = t.p where t.id = s.id and q.call = 'resolve' and q.answer = 'not-written' and q.at > p.ended));

drop table if exists written;
create table written as -- each message with its writer, if one is known, and the times between which it was written
	with chosen as (
		select *, row_number() over (partition by message order by sure desc, same and fits desc, s desc) as rank, min(at) over (partition by message) as earliest from claims
	), told as (
		select s.message, min(p.ended) as until
		from sent s join parts p on p.rowid = s.p
		where p.outcome = 'yes' and s.message is not null and not exists (select 1 from undone u where u.s = s.rowid)
		group by s.message
	)
	select m.rowid as message, m.id, m.stream, m.category, m.position, m.global, c.s, c.p, c.o, c.sure, c.same,
		case when c.sure then c.at else coalesce(c.earliest, 0) end as since, coalesce(t.until, x.never) as until, t.until is not null as told,
		m.category not in (select category from unrecorded) as recorded
	from messages m left join chosen c on c.message = m.rowid and c.rank = 1 left join told t on t.message = m.rowid, limits x;
create unique index written_message on written (message);

drop table if exists batches;
create table batches as -- the writes that may have been done, and how much of each there is
	with whole as (
		select p.o, p.name, p.outcome, count(*) as messages, count(s.message) as there, sum(w.p is not null and w.p = s.p) as own, sum(s.message is not null and w.p is not s.p) as others
		from parts p join sent s on s.p = p.rowid left join written w on w.message = s.message
		where p.call <> 'resolve' and p.outcome <> 'no'
		group by p.o
	)
	select o, name, messages, there from whole b
	-- Those that there are may be of another writer, for which this one was refused.
	where there > 0 and not (outcome = 'unknown' and others > 0) and not (own = 0 and exists (select 1 from undone u where u.o = b.o));

---- Versions of streams

drop table if exists conflicts;
create table conflicts as -- each write that was refused for a version
	select c.rowid as o, c.process || ':' || c.op as name, c.at, c.ended, cast(coalesce(c.told ->> '$.appends[0].stream', c.asked ->> '$.appends[0].stream') as text) as stream,
		coalesce(c.told ->> 'actual', 0) as actual
	from calls c where c.call in ('write', 'write-tx') and c.answer = 'conflict';
alter table conflicts add column expected;
update conflicts set expected = coalesce((select max(p.expected) from parts p where p.o = conflicts.o and p.stream = conflicts.stream), -2);

drop table if exists reads;
create table reads as -- of a stream, from a position on to its end
	select c.rowid as o, c.process || ':' || c.op as name, c.at, c.ended, cast(c.asked ->> '$.appends[0].stream' as text) as stream, coalesce(c.asked ->> '$.appends[0].expected', 0) as position,
		coalesce(json_array_length(c.told, '$.appends[0].messages'), 0) as n,
		coalesce((select max(coalesce(m.value ->> 'position', 0) <> coalesce(c.asked ->> '$.appends[0].expected', 0) + m.key) from json_each(c.told, '$.appends[0].messages') m), 0) as gap
	from calls c
	where c.call = 'read' and c.answer = 'ok' and json_array_length(c.asked, '$.appends') = 1 and json_array_length(c.told, '$.appends') = 1;

drop table if exists looks;
create table looks as -- each version of a stream that a process was told
	select c.process || ':' || c.op as name, cast(c.asked ->> '$.appends[0].stream' as text) as stream, coalesce(c.told ->> 'actual', 0) as version, c.at, c.ended
	from calls c where c.call = 'version' and c.answer = 'ok'
	union all
	select name, stream, position + n - 1, at, ended from reads where not gap and (n > 0 or position = 0)
	union all
	select name, stream, actual, at, ended from conflicts c
	where expected <> -2 and actual <> expected and (exists (select 1 from failovers) or exists (select 1 from messages m where m.stream = c.stream and m.position >= c.actual) or actual = -1); -- or else S3f tells of it

drop table if exists deliveries;
create table deliveries as -- each call of a handler, and each message that was given up on
	select c.rowid as o, c.process || ':' || c.op as name, c.call, c.process, cast(coalesce(c.asked ->> 'run', 0) as integer) as run, c.at, c.ended, c.answer,
		coalesce(c.asked ->> 'attempt', 0) > 1 as again, cast(coalesce(c.asked ->> 'key', '') as text) as key,
		cast(c.asked ->> '$.appends[0].stream' as text) as stream, cast(c.asked ->> '$.appends[0].messages[0].id' as text) as id,
		coalesce(c.asked ->> '$.appends[0].messages[0].position', 0) as position, coalesce(c.asked ->> '$.appends[0].messages[0].global', 0) as global,
		coalesce(c.asked ->> '$.appends[0].messages[0].value', 0) as value, coalesce(c.asked ->> '$.appends[0].messages[0].hash', 0) as hash
	from calls c where c.call in ('handle', 'park');
alter table deliveries add column message integer;
-- A message that a failover undid and that was written again is another one.
update deliveries set message = (select t.rowid from messages t where t.id = deliveries.id
		and (not exists (select 1 from failovers) or t.global = deliveries.global and t.position = deliveries.position) order by t.global limit 1);
create index deliveries_message on deliveries (message);

drop table if exists steps;
create table steps as -- what changed a stream's version or saw it. The order of all is known: a version is seen between two writes
	with epochs as ( -- how many failovers were before a message
		select w.*, (select count(*) from kept k where k.category = w.category and w.global > k.head) as epoch from written w where w.recorded
	), witnessed as (
		select message, min(at) as at from deliveries where not exists (select 1 from failovers) group by message
	), done as (
		select e.stream, coalesce('p' || e.p, 'm' || e.message) as writer, min(e.position) as first, max(e.position) as last, min(e.since) as at, min(min(e.until, coalesce(w.at, x.never))) as ended,
			min(e.epoch) as epoch, min(e.id) as id
		from epochs e left join witnessed w on w.message = e.message, limits x group by e.stream, coalesce('p' || e.p, 'm' || e.message)
	)
	select stream, first, last, at, ended, epoch, 0 as lost, 'message ' || id as name, 2 * first + 1 as rank from done
	union all
	select p.stream, p.version - p.n + 1, p.version, p.at, p.ended, (select count(*) from failovers f where f.ended <= p.at), 1, p.name, 2 * (p.version - p.n + 1) + 1
	from parts p
	where p.call <> 'resolve' and p.outcome = 'yes' and not p.duplicate and p.n > 0 and p.category not in (select category from unrecorded) and p.o in (select o from undone)
	union all
	select l.stream, null, l.version, l.at, l.ended, (select count(*) from failovers f where f.ended <= l.at), 0, l.name, 2 * (l.version + 1)
	from looks l
	where substr(l.stream, 1, instr(l.stream || '-', '-') - 1) not in (select category from unrecorded)
		and not exists (select 1 from failovers f where f.ended > l.at and f.at < l.ended); -- during one it is not clear
create index steps_of on steps (stream, last);

---- Consumers

drop table if exists runs;
create table runs as -- each life of a consumer
	select c.rowid as o, c.process || ':' || c.op as name, cast(dense_rank() over (order by c.asked ->> 'consumer', c.asked ->> 'category') as integer) as g, c.process, c.op,
		cast(c.asked ->> 'consumer' as text) as consumer, cast(c.asked ->> 'category' as text) as category, coalesce(c.asked ->> 'alone', 0) as alone,
		coalesce(c.asked ->> 'interval', 0) + coalesce(c.asked ->> 'batch', 0) as allowance, coalesce(c.asked ->> 'position', 0) as start, c.at, c.ended, c.answer
	from calls c where c.call = 'run';
create unique index runs_of on runs (process, op);

drop table if exists groups;
create table groups as -- a consumer of a category, with all its lives. One that is alone has one process at a time
	select g, consumer, category, consumer || ' of ' || category as name, max(alone) as alone, min(start) as start, max(allowance) as allowance from runs group by g;
create unique index groups_of on groups (g);

drop table if exists handed;
create table handed as -- the deliveries, with their lives
	select d.*, r.rowid as r, r.g from deliveries d join runs r on r.process = d.process and r.op = d.run;
create index handed_of on handed (g, message);
create index handed_run on handed (r, at);

drop table if exists puts;
create table puts as -- each checkpoint that a life stored, and the state of its group that it wrote with it
	select c.rowid as o, c.process || ':' || c.op as name, r.rowid as r, r.g, c.process, coalesce(c.asked ->> 'position', 0) as position, c.at, c.ended, c.answer,
		cast(coalesce(c.asked ->> 'target', '') as text) as member, cast(coalesce(c.asked ->> '$.appends[0].messages[0].id', '') as text) as id
	from calls c join runs r on r.process = c.process and r.op = cast(c.asked ->> 'run' as integer) where c.call = 'position';
create index puts_of on puts (g, at);
create index puts_run on puts (r, at);
create index puts_id on puts (id);

drop table if exists pages;
create table pages as -- each page that a life was answered, and the position after it
	select r.rowid as r, r.g, coalesce(c.asked ->> 'position', 0) as position, c.at, max(coalesce(c.asked ->> 'position', 0)) over (partition by r.rowid order by c.at, c.op) as most
	from calls c join runs r on r.process = c.process and r.op = cast(c.asked ->> 'run' as integer) where c.call = 'fetch';
create index pages_of on pages (r, at);

drop table if exists met;
create table met as -- what became of each message that a group is to handle: when it was first delivered, handled or given up on
	with parked as (
		-- Of an unknown outcome it is parked again, before the consumer goes on.
		select d.g, d.message, min(d.at) as at, min(d.ended) as done
		from handed d
		where d.call = 'park' and d.answer = 'ok'
		group by d.g, d.message
	), refused as ( -- a consumer that meets a conflict learns that another has parked it
		select d.g, d.message, min(d.ended) as done from handed d join parked p on p.g = d.g and p.message = d.message
		where d.call = 'park' and d.answer = 'conflict' and p.at < d.ended
		group by d.g, d.message
	), handled as (
		select g, message, min(at) as began, min(case answer when 'ok' then ended end) as done from handed where call = 'handle' group by g, message
	)
	select g.g, m.rowid as message, m.global, m.stream, m.position, m.slot,
		coalesce(h.began, x.never) as began, min(coalesce(h.done, x.never), coalesce(p.done, x.never), coalesce(r.done, x.never)) as done, coalesce(p.at, x.never) as parked
	from groups g join messages m on m.category = g.category and m.global >= g.start
		left join handled h on h.g = g.g and h.message = m.rowid
		left join parked p on p.g = g.g and p.message = m.rowid
		left join refused r on r.g = g.g and r.message = m.rowid, limits x;
create unique index met_message on met (g, message);
create index met_stream on met (g, stream, position);
create index met_global on met (g, global);

drop table if exists upto;
create table upto as -- when all up to a message was done, of a group and of a slot
	select g, slot, global, message, max(done) over (partition by g order by global) as done, max(done) over (partition by g, slot order by global) as of_slot from met;
create index upto_of on upto (g, global);
create index upto_slot on upto (g, slot, global);

drop table if exists first;
create table first as -- the deliveries to lives that are no repetition within them, of messages that were not given up on
	select d.rowid as d, d.g, d.r, d.name, d.message, d.at, d.answer, m.stream, m.position, m.global, m.slot,
		lag(m.position) over (partition by d.r, m.stream order by d.at, d.rowid) as before, lag(d.at) over (partition by d.g, d.message order by d.at, d.rowid) as last
	from handed d join met m on m.g = d.g and m.message = d.message
	where d.call = 'handle' and not d.again and m.parked >= d.at;

drop table if exists known;
create table known as -- how far a life had read when it stored a checkpoint: by its pages, or, where a group has none in the history, by what there is
	select p.rowid as put, case
			when exists (select 1 from pages a where a.g = p.g) then coalesce((select a.most from pages a where a.r = p.r and a.at < p.at order by a.at desc limit 1), r.start)
			when exists (select 1 from failovers) then x.never -- lost messages are not in the table
			else max(coalesce((select max(u.global) + 1 from upto u where u.g = p.g), 0), g.start)
		end as upto
	from puts p join runs r on r.rowid = p.r join groups g on g.g = p.g, limits x;
create unique index known_of on known (put);

---- Groups that processes join

drop table if exists states;
create table states as -- each state of a group that was stored, in their order, with its writer
	with wrote as ( -- the first call that had it
		select *, rowid as put, row_number() over (partition by g, id order by at) as rank, min(case answer when 'ok' then ended end) over (partition by g, id) as told from puts where id <> ''
	), of as (
		select distinct w.g, m.stream from wrote w join messages m on m.id = w.id join groups g on g.g = w.g where m.state <> '' and not g.alone
	), names as (
		select r, max(member) as member from puts where member <> '' group by r
	), all_of as (
		select o.g, cast(row_number() over (partition by o.g order by m.stream, m.position) as integer) as n, m.position, m.state, m.time, coalesce(m.state ->> 'position', 0) as lowest,
			coalesce(nullif(m.state ->> '$.group.by', ''), y.member, '') as member, w.r, w.process, w.name, w.at, w.ended, w.told, w.put
		from of o join messages m on m.stream = o.stream and m.state <> ''
			left join wrote w on w.g = o.g and w.id = m.id and w.rank = 1 left join names y on y.r = w.r
	)
	select *, coalesce(nullif(min(coalesce(told, x.never), -- when it was there at the latest
			coalesce(min(min(coalesce(told, x.never), coalesce(ended, x.never))) over (partition by g order by n rows between 1 following and unbounded following), x.never)), x.never), ended, x.never) as there
	from all_of, limits x;
create unique index states_of on states (g, n);
create index states_run on states (r, n);
create index states_member on states (g, member, n);
alter table states add column ran integer; -- the life that wrote for its member before
alter table states add column ran_process text;
alter table states add column newcomer integer;

drop table if exists members;
create table members as -- those that each state has
	select s.g, s.n, cast(m.value ->> 'id' as text) as id, coalesce(m.value ->> 'lease', 0) * 1000 as lease, coalesce(m.value ->> 'resting', 0) as resting, coalesce(m.value ->> 'whole', 0) as whole
	from states s, json_each(s.state, '$.group.members') m;
create index members_of on members (g, id, n);
create index members_n on members (g, n, id);

drop table if exists removals;
create table removals as -- of a member, by the first state that lacks it
	select m.g, s.n, m.id, m.lease, m.resting, s.member as by_whom, s.time, s.there
	from members m join states s on s.g = m.g and s.n = m.n + 1
	where not exists (select 1 from members k where k.g = m.g and k.n = m.n + 1 and k.id = m.id);
create index removals_of on removals (g, id, n);

update states set
	ran = (select p.r from states p where p.g = states.g and p.member = states.member and p.n < states.n order by p.n desc limit 1),
	ran_process = (select p.process from states p where p.g = states.g and p.member = states.member and p.n < states.n order by p.n desc limit 1)
where member <> '';
-- A member that was removed, or left, comes as any newcomer.
update states set newcomer = not exists (select 1 from states p where p.g = states.g and p.member = states.member and p.n < states.n)
	or r is not ran and r is not null and exists (
		select 1 from removals l where l.g = states.g and l.id = states.member and l.n < states.n
			and l.n >= (select max(p.n) from states p where p.g = states.g and p.member = states.member and p.n < states.n))
where member <> '';

drop table if exists slots;
create table slots as -- 0 to 31
	with recursive s (slot) as (select 0 union all select slot + 1 from s where slot < 31) select slot from s;

drop table if exists spots;
create table spots (g integer, n integer, slot integer, holder text, position integer, parts integer, primary key (g, n, slot)) without rowid;
-- Who holds each slot in each state, and where it is: before the first, nobody.
insert into spots
	select g.g, 0, l.slot, '', g.start, 1 from groups g, slots l where not g.alone
	union all
	select s.g, s.n, l.slot, '', s.lowest, 1 from states s, slots l where coalesce(json_array_length(s.state, '$.group.parts'), 0) = 0
	union all
	select s.g, s.n, l.slot, case when max(p.key) is null then '' else coalesce(nullif(p.value ->> 'holder', '00000000-0000-0000-0000-000000000000'), '') end, coalesce(p.value ->> 'position', 0), count(p.key)
	from states s join slots l left join json_each(s.state, '$.group.parts') p on (p.value ->> 'slots') >> l.slot & 1
	where json_array_length(s.state, '$.group.parts') > 0
	group by s.g, s.n, l.slot;
drop table if exists moves;
create table moves as -- the states that moved a slot's position, or gave it to another
	select s.g, s.n, s.slot, b.holder as was, s.holder as is_now, b.position as before, s.position
	from spots s join spots b on b.g = s.g and b.n = s.n - 1 and b.slot = s.slot
	where s.holder <> b.holder or s.position <> b.position;
create index moves_of on moves (g, slot, n);
create index moves_state on moves (g, n);

drop table if exists begins;
create table begins as -- the state with which each life begins: the first that it wrote
	select r, g, min(n) as n from states where r is not null group by r;
create unique index begins_of on begins (r);

---- Idempotence keys

drop table if exists attempts;
create table attempts as -- to reserve a key
	select c.rowid as o, c.process || ':' || c.op as name, cast(c.asked ->> 'key' as text) as key, coalesce(c.asked ->> 'value', 0) as value, cast(c.asked ->> '$.appends[0].stream' as text) as stream,
		cast(c.asked ->> '$.appends[0].messages[0].id' as text) as source, c.at, c.ended,
		case when c.answer in ('won', 'duplicate') then 'yes' when c.answer = 'key-reused' then 'reused' else c.answer end as answer
	from calls c where c.call = 'reserve';
create index attempts_key on attempts (key);

drop table if exists keys;
create table keys as -- each that was to be reserved, with what there is of it
	select a.key, a.stream, count(m.rowid) as reserved, min(m.global) as global, (select k.value from messages k where k.stream = a.stream order by k.position limit 1) as winner,
		(select count(*) from messages e where e.effect = a.key and e.effect <> '') as effects, 0 as outside, 0 as in_hand, 0 as acknowledged, 0 as told
	from (select key, min(stream) as stream from attempts group by key) a left join messages m on m.stream = a.stream
	group by a.key;
create unique index keys_of on keys (key);

drop table if exists rewound;
create table rewound as -- the failovers that did not keep a key's reservation
	select k.key, f.f, f.at, f.ended from keys k, failovers f
	where not (k.reserved > 0 and k.global <= (select h.head from kept h where h.f = f.f and h.category = substr(k.stream, 1, instr(k.stream || '-', '-') - 1)));
create index rewound_of on rewound (key);

drop table if exists tries;
create table tries as -- the attempts that count: an answer before a failover was over came from the old primary
	select a.name, a.key, a.value, a.source, case when a.answer = 'yes' and exists (select 1 from rewound w where w.key = a.key and a.ended > w.at and a.at < w.ended) then '' else a.answer end as answer
	from attempts a where not exists (select 1 from rewound w where w.key = a.key and a.ended > w.at and a.ended < w.ended);
create index tries_of on tries (key);

drop table if exists acks;
create table acks as -- the commands that were handled. One that was undone while it was in flight may be handled after the failover
	select d.key, d.id as source
	from handed d join runs r on r.rowid = d.r
	where d.call = 'handle' and d.answer = 'ok' and d.key <> '' and not exists (
		select 1 from rewound w join kept k on k.f = w.f and k.category = r.category
		where w.key = d.key and d.ended > w.at and (d.at < w.ended or r.at < w.ended and d.global > k.head));
create index acks_of on acks (key, source);

drop table if exists others;
create table others as -- the commands that ask for something else than the one that has the key, and what they were told
	select t.key, t.source, max(t.answer = 'reused') as reused, max(t.answer = 'yes') as taken
	from tries t join keys k on k.key = t.key and k.reserved = 1
	where t.value <> k.winner and exists (select 1 from tries w where w.key = k.key and w.value = k.winner)
	group by t.key, t.source;

update keys set
	told = exists (select 1 from tries t where t.key = keys.key and t.answer = 'yes'),
	acknowledged = exists (select 1 from acks a where a.key = keys.key),
	in_hand = (
		select count(distinct d.global) from deliveries d join runs r on r.process = d.process and r.op = d.run join kept k on k.category = r.category
		where d.key = keys.key and r.at < k.ended and d.ended > k.at and d.global > k.head)
where exists (select 1 from attempts a where a.key = keys.key);
create index if not exists deliveries_key on deliveries (key);
drop table if exists outside;
create table outside as select cast(asked ->> 'key' as text) as key, count(*) as n from calls where call = 'effect' group by 1;
create index outside_of on outside (key);
update keys set outside = coalesce((select n from outside o where o.key = keys.key), 0);

---- Failovers

drop table if exists answered;
create table answered as -- when each life was answered last, or ended by itself
	select r.rowid as r, max(case when r.answer <> '' then r.ended else 0 end, coalesce((select max(p.at) from pages p where p.r = r.rowid), 0),
		coalesce((select max(p.ended) from puts p where p.r = r.rowid and p.answer not in ('', 'unknown')), 0)) as last
	from runs r where exists (select 1 from failovers);

drop table if exists beyond;
create table beyond as -- the positions of lives that a failover did not keep
	select k.f, k.head, k.ended, p.r, p.position, p.read from (
			select r, g, position, at as ended, 1 as read from pages union all select r, g, position, ended, 0 from puts where answer = 'ok'
		) p join groups g on g.g = p.g join kept k on k.category = g.category
	where p.ended < k.ended and p.position > k.head + 1;

drop table if exists ahead;
create table ahead as -- the lives that had to be told of it, and how far the store had grown before they could read
	select b.f, b.r, max(b.position) as position, b.head, coalesce((
			select h.value from calls o, json_each(o.told, '$.heads') h
			where o.call = 'overtake' and h.key = r.category and o.at >= f.ended and o.at < coalesce((select n.at from failovers n where n.f = f.f + 1), x.never)
			order by o.at limit 1), 0) as grown
	from beyond b join runs r on r.rowid = b.r join failovers f on f.f = b.f join answered a on a.r = b.r, limits x
	where r.ended > f.at and a.last > f.ended
	group by b.f, b.r;

drop table if exists begun_again;
create table begun_again as -- the lives that only the epoch can have told that a backup was put back
	with taken as (
		select f.f, f.at, f.ended, max(x.at) as backup from failovers f join faults x on x.name = f.way and f.at < x.at and x.at < f.ended group by f.f
	)
	select distinct t.f, d.r
	from taken t join handed d on d.call = 'handle' and d.answer = 'ok' and d.at > t.backup and d.ended < t.ended
		join runs r on r.rowid = d.r join kept k on k.f = t.f and k.category = r.category join answered a on a.r = d.r
	where d.global <= k.head and a.last > t.ended
		and not exists (select 1 from beyond b where b.r = d.r and b.f = t.f and b.read)
		and not exists (select 1 from puts p where p.r = d.r and p.answer in ('ok', 'unknown', '') and p.ended > t.at and p.at < t.ended);

---- Figures

insert into counts
	select 'undone', 'acknowledged, and undone by failovers as it may be', count(distinct id) from undone
	union all select 'ahead', 'lives of consumers that were ahead of the store', count(*) from ahead
	union all select 'overtaken', '  of a store that had grown past them', coalesce(sum(grown >= position - 1), 0) from ahead
	union all select 'silent', '  that were not told', (select count(*) from ahead a join runs r on r.rowid = a.r where r.answer <> 'ahead') + (select count(*) from begun_again b join runs r on r.rowid = b.r where r.answer <> 'epoch')
	union all select 'byEpoch', 'lives of consumers that only the epoch told', count(*) from begun_again
	union all select 'facts:' || f.value, 'measured: ' || f.value, (select count(*) from facts where what = f.value) from json_each('["lag", "memory", "searched", "amcheck"]') f
	union all select 'facts:goroutines', 'measured: goroutines', count(*) from calls where call = 'end' and answer = 'ok'
	union all select 'facts:usable', 'measured: usable', (select count(*) from facts where what = 'usable') + (select count(*) from calls where call = 'end' and told ->> 'usable' is not null)
	union all select 'steps', 'operations checked for linearizability', count(*) from steps;

drop table if exists flights;
create table flights as -- the writes, and until when those that began by then were under way
	select at, ended, answer, max(ended) over (order by at rows unbounded preceding) as most, max(case answer when 'unknown' then ended end) over (order by at rows unbounded preceding) as most_unknown
	from (select at, case when answer = '' then at else ended end as ended, answer from calls where call in ('write', 'write-tx'));
create index flights_at on flights (at);
insert into counts
	select 'met:' || name, name || ' while a write was under way', sum(coalesce((select w.most from flights w where w.at <= f.ended order by w.at desc limit 1), -1) >= f.at) from faults f group by name
	union all select 'struck:' || name, '  ' || name || ' in the middle of one of unknown outcome', sum(coalesce((select w.most_unknown from flights w where w.at < f.at order by w.at desc limit 1), -1) > f.at) from faults f group by name;

drop table if exists spans;
create table spans as -- of faults, and until when those that began by then lasted
	select at, max(ended) over (order by at rows unbounded preceding) as most from faults;
create index spans_at on spans (at);
insert into counts
	select 'healthy', 'per cent of the writes outside faults that were answered', coalesce(100 * sum(c.answer in ('ok', 'conflict')) / count(*), 0)
	from calls c where c.call in ('write', 'write-tx') and coalesce((select s.most from spans s where s.at <= c.ended order by s.at desc limit 1), -1) < c.at;

drop table if exists kills;
create table kills as -- of the server: alone if nothing else was wrong around it
	select c.rowid as k, c.at, c.ended as dead, not exists (select 1 from calls o where o.call = 'kill' and o.asked ->> 'target' = 'server' and o.at <> c.at and o.at between c.at - x.alone_before and c.at + x.alone_after)
		and not exists (select 1 from faults f where f.at <= c.at + x.alone_after and f.ended >= c.at - x.alone_before and not (f.name in ('kill-backend', 'kill-server') and f.at <= c.at and c.at <= f.ended)) as alone
	from calls c, limits x where c.call = 'kill' and c.asked ->> 'target' = 'server';
drop table if exists handling;
create table handling as -- by clients whose handlers do nothing without the store
	select f.name as slot, d.at, min(d.ended) over (partition by f.name order by d.at rows between current row and unbounded following) as ended
	from facts f join deliveries d on d.process glob f.name || '-[0-9]*' and d.process not glob f.name || '-[0-9]*[^0-9]*' where f.what = 'needs' and d.call = 'handle' and d.answer = 'ok';
create index handling_of on handling (slot, at);
drop table if exists recovered;
create table recovered as -- from a kill until a message was handled that was delivered after it: by each, and by any
	select k.k, k.alone, f.name as slot, (select h.ended from handling h where h.slot = f.name and h.at > k.dead order by h.at limit 1) - k.at as took from kills k, facts f where f.what = 'needs';
insert into recovered select k, alone, '', min(took) from recovered group by k;
insert into counts
	with ranked as (
		select alone, slot = '' as first, took, row_number() over w as rank, count(*) over (partition by alone, slot = '') as n from recovered where took is not null window w as (partition by alone, slot = '' order by took)
	)
	select 'recovered' || case when first then 'First' else 'Each' end || case when alone then '' else 'OfMany' end || q.name,
		case when first then 'handling again after a kill' else '  each of the consumers' end || case when alone then '' else ' among other faults' end || ', ' || q.name || ' in ms',
		max(case when rank = max(1, (n * q.part + 99) / 100) then took end) / 1000
	from ranked, (select 'p50' as name, 50 as part union all select 'p99', 99) q group by first, alone, q.name;

insert into counts select 'unrecovered', '  consumers that never handled a message after a kill', count(*) from recovered where slot <> '' and took is null;

drop table if exists lost;
create table lost as -- the members that were killed, or stopped for longer than their lease
	select distinct r.g, f.target as process, f.at as since, case f.name when 'kill-member' then x.never else f.ended end as until, f.name
	from faults f join runs r on r.process = f.target join groups g on g.g = r.g and not g.alone, limits x where f.name in ('kill-member', 'stop-member');
drop table if exists alive;
create table alive as
	select r.g, r.process, min(r.at) as since, max(max(r.at), coalesce(max(case when r.answer <> '' then r.ended end), 0), coalesce(max(p.last), 0)) as until
	from runs r join groups g on g.g = r.g and not g.alone left join (select r, max(at) as last from puts group by r) p on p.r = r.rowid group by r.g, r.process;
drop table if exists gaps;
create table gaps as -- from the loss of a member that had slots until others have them all, where another was there to take them
	with held as (
		select l.*, b.slot, b.holder, b.n as n0, (select min(t.n) from spots t where t.g = b.g and t.slot = b.slot and t.n > b.n and t.holder not in ('', b.holder)) as n1
		from lost l join spots b on b.g = l.g and b.n = (select max(s.n) from states s where s.g = l.g and s.there <= l.since)
		where b.holder in (select s.member from states s where s.g = l.g and s.process = l.process)
	), longest as (
		select h.g, h.process, h.since, h.until, h.holder, h.n0, max(h.n1) as n1, max(s.there) - h.since as gap from held h join states s on s.g = h.g and s.n = h.n1 group by h.g, h.process, h.since
	)
	select h.g, h.process, h.since, h.gap
	from longest h
	where exists (
			select 1 from alive a, (select max(lease) as lease from members) m where a.g = h.g and a.process <> h.process and a.since < h.since and a.until > h.since + 2 * m.lease
				and not exists (select 1 from lost o where o.process = a.process and o.since < h.since + 2 * m.lease and o.until > h.since))
		-- One that goes on was not removed while it was stopped.
		and not exists (select 1 from states t where t.g = h.g and t.member = h.holder and t.n > h.n0 and t.n <= h.n1 and t.at > h.until and t.there > h.until);
insert into counts
	select 'joins', 'members that joined', coalesce(sum(newcomer), 0) from states
	union all select 'leaves', '  left in order', count(*) from removals where by_whom = id
	union all select 'memberKills', '  were killed', count(*) from lost where name = 'kill-member'
	union all select 'memberStops', '  were stopped for longer than their lease', count(*) from lost where name = 'stop-member'
	union all select 'takenOver', '  were removed, their lease being over', count(*) from removals where by_whom not in ('', id)
	union all select 'states', '  states of groups', count(*) from states
	union all select 'grouped', 'messages that groups of them handled', count(*) from handed d join groups g on g.g = d.g where not g.alone and d.call = 'handle' and d.answer = 'ok'
	union all select 'groupedAgain', '  that were delivered again', count(*) from first f join groups g on g.g = f.g where not g.alone and f.last is not null
	union all select 'lease', 'lease of a member, in ms', coalesce(max(lease), 0) / 1000 from members
	union all select 'gaps', 'lost members whose slots are held again', count(*) from gaps
	union all select 'gapsWithin', '  within two leases', count(*) from gaps where gap <= 2 * (select max(lease) from members)
	union all select 'gapMax', '  the longest, in ms', coalesce(max(gap), 0) / 1000 from gaps
	union all select 'late', 'deliveries begun by a member that had been removed', count(*)
		from handed d join begins b on b.r = d.r join states s on s.g = b.g and s.n = b.n where exists (
			select 1 from removals l where l.g = s.g and l.id = s.member and l.n > s.n and l.by_whom <> l.id and d.at > l.there);

analyze; -- or else the order of joins is guessed
