-- What a store has in the end, and what the harness measured, beside the calls of processes. Times are in microseconds.

create table if not exists messages (        -- all that there are, and the states of groups that were removed
	stream   text,
	category text,
	position integer,                         -- in the stream
	global   integer,                         -- the global one
	id       text,
	value    integer,                         -- in its data, and in no other message that was not sent as its copy
	hash     integer,                         -- of its content
	effect   text,                            -- the idempotence key whose effect it is, '' for none
	slot     integer,                         -- of its cardinal id, 0 to 31
	state    text                             -- of a consumer's group, as JSON; '' for another message
);
create table if not exists unrecorded (category text primary key);  -- whose messages are written without a history
create table if not exists facts (           -- what the harness measured
	what text,                                -- see hygiene.sql, C8a.sql and S8.sql
	name text,
	n    integer,
	at   integer                              -- since the beginning
);
create table if not exists progress (what text primary key, n integer);     -- what the harness knows while the run goes on
create table if not exists counts (key text primary key, name text, n integer); -- figures of a history that was checked

create view if not exists limits as select
	4611686018427387903 as never,
	-2                  as any_version,
	5000                as drift,            -- by how much the clocks of the store and its clients may differ after a lease
	10000000            as broken,           -- how long a store that did not work keeps a member from storing how far it was
	300000000           as heal,             -- how long it may take until all is quiet after the last fault
	300000000           as warm,             -- how long a process's memory may grow
	1200000000          as watched,          -- how long it must then be watched for its growth to say anything
	10                  as growth,           -- per cent an hour
	1000000             as alone_before,     -- in which no other fault is, for a kill to be alone
	2000000             as alone_after;
