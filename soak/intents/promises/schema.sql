-- What a store and a resource have in the end, beside the calls of processes. Times are in microseconds.

create table if not exists messages (global integer, stream text, position integer, type text, at integer, data text); -- of intents
create table if not exists rows (stream text, token integer, result text);        -- of confirmations, in their transactions
create table if not exists counted (key text, n integer); -- by a check
create view if not exists writes as -- that a resource was asked for, in its order
	select op, at, asked ->> 'stream' as stream, asked ->> 'token' as token, asked ->> 'session' as process, asked ->> 'result' = 'accepted' as accepted from calls where call = 'write';

create view if not exists limits as select
	4611686018427387903 as never,
	500000              as ttl,
	100000              as turn,
	50000               as margin,  -- that a holder stops before its lease ends
	2000                as drift,   -- of two clocks within a lease
	100000              as waking,  -- how long a process that was stopped takes to go on
	500000              as written, -- how long a message is on its way at most, from its time, under the lock, to where a read meets it
	2500000             as healed,  -- in how long nothing is held
	-- A server's clock that was moved is held against no other.
	exists (select 1 from calls where call in ('jump', 'freeze')) as moved,
	exists (select 1 from calls where call = 'serve') as served;
