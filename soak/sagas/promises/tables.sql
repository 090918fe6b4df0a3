-- What several promises look at.

create index if not exists messages_place on messages (stream, position);
create index if not exists messages_id on messages (id);
create index if not exists turns_stream on turns (stream);


drop table if exists faults;
create table faults as
	select case when c.call = 'kill' and c.asked ->> 'target' = 'server' then 'outage' else c.call end as what, c.asked ->> 'target' as process, c.at as since, c.ended as until,
		coalesce(c.asked ->> 'off', 0) as off
	from calls c
	where c.call in ('kill', 'cut', 'stop', 'jump');

drop table if exists rings;
create table rings as -- of timers, one after the other
	select c.asked ->> '$.ids[0]' as id, c.asked ->> 'due' as due, c.process, c.at,
		row_number() over w - 1 as again, lag(c.process) over w as process_before, lag(c.at) over w as before
	from calls c
	where c.call = 'ring'
	window w as (partition by c.asked ->> '$.ids[0]' order by c.at);
create index rings_id on rings (id);

drop table if exists letters;
create table letters as -- that the sink took, in their order: at the end of the call, or never as far as is known
	select c.process, c.asked ->> 'stream' as stream, coalesce(c.asked ->> 'position', 0) as position, c.asked ->> '$.ids[0]' as id, c.answer,
		coalesce(max(case c.answer when 'ok' then coalesce(c.asked ->> 'position', 0) end) over (
			partition by c.asked ->> 'stream' order by c.ended, c.at rows between unbounded preceding and 1 preceding
		), -1) + 1 as next
	from calls c
	where c.call = 'send' and (c.answer = 'ok' or c.ended = (select never from limits));
create index letters_place on letters (stream, position);
