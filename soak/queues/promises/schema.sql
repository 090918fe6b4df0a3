-- What a store has in the end, beside the calls of processes. Times are in microseconds.

create table if not exists messages (   -- of the queue's category: the items
	position integer,                    -- the global one
	stream   text,
	place    integer,                    -- in its stream
	id       text,
	n        integer,                    -- its content
	due      integer,                    -- it is not given before
	gone     integer,                    -- it was trimmed
	open     integer                     -- when it was trimmed
);
create table if not exists rows (        -- of items that are not finished
	position integer, version integer, state text, failures integer, session integer, after integer
);
create table if not exists log (         -- a line for each delivery that did not finish its item, and of operators
	position integer, version integer, what text, at integer, session integer
);
create table if not exists effects (position integer, version integer);        -- of handlers, in the transactions of completions
create table if not exists inserted (process text, op integer, id text);       -- of callers, in the transactions of staged items
create table if not exists head (cursor integer, held integer, taken integer, finished integer, returned integer, buried integer);
create table if not exists sorts (what text primary key, lines integer);       -- how many lines the logs have of each sort, so far

create view if not exists limits as select
	4611686018427387903 as never,
	1000                as slack,        -- by how much the clocks of two processes may differ: one clock, read one after the other
	10000000            as met,          -- how long after its lease the end of a session is met at most, on a machine that is busy
	2000000             as ends,         -- how long a handler's context outlives its session at most, there
	10000000            as reaches,      -- how long an item waits behind those of another key at most, there
	30000000            as apart,        -- for how long no two calls have one lease
	1000000             as hang_up,      -- in how long a call whose caller has gone is ended, there
	2000000             as locked,       -- how long the file is locked at most
	4                   as max_failures,
	5000                as poison,       -- the content of an item that kills its process
	'mail-hot'          as hot;          -- the stream of thousands of items of a key
