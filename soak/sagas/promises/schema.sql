-- What a store has in the end, beside the calls of processes. Times are in microseconds.

create table if not exists messages ( -- of sagas, letters and timers
	global integer, category text, stream text, position integer, id text, type text,
	at     integer, -- by the database's clock, which is that of all processes
	data   text,    -- of a saga's
	due    integer  -- of a timer
);
create table if not exists rows (saga text, step text, what text, process text); -- of steps, in their transactions
create table if not exists turns ( -- of sagas, and deliveries of timers, that came to nothing
	stream text,
	what   text, -- e: its process was gone, or had no server for a lease; f: the store failed, or another process went on
	at     integer
);


create table if not exists counted (key text, name text, n integer); -- by a check

create view if not exists limits as select
	4611686018427387903 as never,
	1000000             as lease;
