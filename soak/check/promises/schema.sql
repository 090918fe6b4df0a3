-- What a store has in the end, and what the harness measured, beside the calls of processes. Times are in microseconds.
--
-- The calls of clients, with what is asked for, and after the semicolon what is told. Appends are of a stream each, with messages.
--
--   write     appends with stream, expected version and messages (id, value, hash); appends with version and global position of the
--             last message, and whether it is a duplicate. A conflict has the actual version, and as its only append its stream.
--   write-tx  the same in a transaction of the caller's, from before its first statement to after its commit or rollback
--   version   the stream, in an append; the actual version
--   read      a stream and the first position, as expected, in an append, or a category; an append for each stream met, with messages
--             as they were read (id, value, hash, position, global)
--   resolve   the process and op of a write of unknown outcome, as ref, and appends with the ids of its messages; appends as of write
--   run       a life of a consumer, from before it runs until it has returned, one for each set of slots that it takes: alone if no
--             other process joins its group, interval of messages between checkpoints, batch that is read at once, start position.
--             Its op is the run of the consumer's other calls, all of which have consumer and category.
--   fetch     the position after a page that was answered, without an answer here
--   handle    a message, in an append, its attempt from 1, its key; ok if the handler returned nil
--   park      a message, in an append
--   position  the first position that is not done with, and with the state of the group that is written its message and the member
--             as target; ok, or conflict
--   reserve   a key, the value of the command, the stream of the reservation and the id of the command
--   effect    a key, or the id of a message, without an answer
--   end       of a process, in order; how many goroutines it has left, and whether its store was usable when there were no more faults
--
-- One that ended as anything but ok and unknown has changed nothing, and never will; without an answer it is of unknown outcome too.
-- The nemesis has calls fault (name, target), did (a fault that had its effect), kill, drain, failover and overtake, the last two told the last global position of each
-- category, as heads.

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
	state    text,                            -- the data of a checkpoint, with the state of its group; '' for another message
	time     integer                          -- by the store's clock
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
