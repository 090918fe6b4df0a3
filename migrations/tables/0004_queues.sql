-- The state of queues. An item of a queue is a message of the queue's category. It is beyond the cursor
-- of the queue's head, or has one row in queue_open, or is finished.
create table dibs.queues (
  id integer generated always as identity primary key,
  name text collate "C" not null unique,
  category text collate "C" not null,

  -- Whether its items are the first messages of streams, which later ones wake, and not all messages. Null before the
  -- first take.
  streams boolean,

  -- When it was removed. Nothing of it is kept then but its name, which is refused.
  removed timestamptz
);

comment on table dibs.queues is 'The queues that were ever taken from. Each reads one category for ever.';

-- Rows come and go with the items, so the table is vacuumed by the number of dead rows, and an
-- index on anything but the key has no row of an item that goes through at once.
create table dibs.queue_open (
  queue integer not null,
  position bigint not null, -- the message's global position
  version integer not null default 0, -- how often the item was given back: with the position, it names a delivery

  -- o: out; l: later; h: held behind another; d: dead; k: dead, and what is behind it stays held;
  -- z: was held, and is finished: it keeps the place of what is behind it;
  -- s: suspended, of a queue of streams: as l, and listed apart.
  state "char" not null,
  failures smallint not null default 0,
  session bigint, -- o: which session has it
  due timestamptz, -- l, s: when it is offered; h: the time before which it is not offered, or null
  after bigint, -- h, z: the position of the item before it
  error text, -- of the last failure, or suspension

  -- Of a queue of streams: the last message that woke the row while it was out, or the last that its worker had read when
  -- it gave the row back, if that is later. What wakes the row is behind it. Of a row that is out it is not null.
  woken bigint,
  primary key (queue, position)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 2000000000, fillfactor = 90);

create index queue_open_state on dibs.queue_open (queue, state, after, due, position) where state <> 'o';

-- What a session has out. Of a queue of items the floor finds it; one of streams may have a million rows that wait behind it.
create index queue_open_turns on dibs.queue_open (queue, session) where state = 'o' and woken is not null;

comment on table dibs.queue_open is 'The open items behind the cursors of the queues.';

-- What a session has out is given back when the session is over.
create table dibs.queue_sessions (
  queue integer not null,
  session bigint not null,
  until timestamptz not null,
  notes jsonb, -- on the progress of what it has out, by position.version
  primary key (queue, session)
) with (fillfactor = 50);

create index queue_sessions_until on dibs.queue_sessions (queue, until);

comment on table dibs.queue_sessions is 'The sessions that have items out, or had, each with its end.';

create table dibs.queue_tickets (
  queue integer not null,
  ticket bigint generated always as identity,
  session bigint not null,
  want integer not null,
  until timestamptz not null,
  primary key (queue, ticket)
);

comment on table dibs.queue_tickets is 'Takes that found nothing and will ask again, in the order of their first asking.';

-- Appended at the version of the one before: the last is the state. So a snapshot that is held for long
-- makes no take slower, as a row that is updated would.
create table dibs.queue_heads (
  queue integer not null,
  version bigint not null,
  at timestamptz not null,
  cursor bigint not null, -- all messages up to it were looked at
  floor bigint not null, -- no row of queue_open is below it
  held bigint not null, -- how many rows are h or z
  ahead bigint not null, -- the highest position that was cancelled beyond the cursor
  wake timestamptz not null, -- nothing is due and no session is over before that
  seen timestamptz not null, -- sessions that ended before were met
  due timestamptz not null, -- what was due before was offered
  checked timestamptz not null, -- held rows were last looked through
  turn bigint not null, -- tickets up to it were served, or have left
  paused boolean not null,
  tokens double precision, -- of a rate, at the time of the head; null before the first
  taken bigint not null,
  finished bigint not null,
  returned bigint not null,
  buried bigint not null,
  primary key (queue, version)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

comment on table dibs.queue_heads is 'The states of queues; the last of each counts.';

-- A delivery that finished its item leaves no entry.
create table dibs.queue_log (
  queue integer not null,
  position bigint not null,
  version integer not null, -- of the delivery, or the state, that ended

  -- r: failed; f: deferred; u: given back unhandled; x: buried; e: its session was over;
  -- by an operator R: offered again, D: dropped, C: cancelled; M: the message was removed.
  what "char" not null,
  at timestamptz not null,
  session bigint,
  text text, -- the error, or the operator's reason
  primary key (queue, position, version)
);

comment on table dibs.queue_log is 'Why an item was delivered more than once, or never finished: what ended each of its other deliveries.';
