-- The state of queues: see package internal/queuestate. An item of a queue is a message of the queue's
-- category. It is beyond the cursor, or has one row in dibs_queue_open, or is finished. Times are microseconds.
CREATE TABLE dibs_queues (
  id       INTEGER PRIMARY KEY,
  name     TEXT    NOT NULL UNIQUE,
  category TEXT    NOT NULL,
  changed  INTEGER, -- when the head was changed last; NULL for never
  cursor   INTEGER NOT NULL DEFAULT 0,
  ahead    INTEGER NOT NULL DEFAULT 0,
  checked  INTEGER NOT NULL DEFAULT 0,
  paused   INTEGER NOT NULL DEFAULT 0,
  tokens   REAL    NOT NULL DEFAULT -1,
  taken    INTEGER NOT NULL DEFAULT 0,
  finished INTEGER NOT NULL DEFAULT 0,
  returned INTEGER NOT NULL DEFAULT 0,
  buried   INTEGER NOT NULL DEFAULT 0,
  shape    INTEGER NOT NULL DEFAULT 0, -- 1: of items; 2: of streams; 0 before the first take
  removed  INTEGER NOT NULL DEFAULT 0  -- when it was removed, and only its name is kept; 0 for not
) STRICT;

CREATE TABLE dibs_queue_open (
  queue    INTEGER NOT NULL,
  position INTEGER NOT NULL, -- the message's global position
  version  INTEGER NOT NULL,
  place    TEXT    NOT NULL CHECK (place IN ('o', 'l', 's', 'h', 'd', 'k', 'z')),
  failures INTEGER NOT NULL,
  session  INTEGER NOT NULL,
  due      INTEGER NOT NULL, -- 0 for none
  after    INTEGER NOT NULL,
  error    TEXT    NOT NULL,
  woken    INTEGER NOT NULL, -- of a queue of streams: what wakes the row is behind it
  PRIMARY KEY (queue, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX dibs_queue_open_place ON dibs_queue_open (queue, place, due, position);
CREATE INDEX dibs_queue_open_session ON dibs_queue_open (queue, session, position) WHERE place = 'o';
CREATE INDEX dibs_queue_open_after ON dibs_queue_open (queue, after, position) WHERE place IN ('h', 'z');

CREATE TABLE dibs_queue_sessions (
  queue   INTEGER NOT NULL,
  session INTEGER NOT NULL,
  until   INTEGER NOT NULL,
  notes   TEXT    NOT NULL DEFAULT '', -- on the progress of what it has out, by position.version; '' for none
  PRIMARY KEY (queue, session)
) STRICT, WITHOUT ROWID;

CREATE INDEX dibs_queue_sessions_until ON dibs_queue_sessions (queue, until);

CREATE TABLE dibs_queue_tickets (
  ticket  INTEGER PRIMARY KEY AUTOINCREMENT,
  queue   INTEGER NOT NULL,
  session INTEGER NOT NULL,
  want    INTEGER NOT NULL,
  until   INTEGER NOT NULL
) STRICT;

CREATE INDEX dibs_queue_tickets_queue ON dibs_queue_tickets (queue, ticket);

CREATE TABLE dibs_queue_log (
  queue    INTEGER NOT NULL,
  position INTEGER NOT NULL,
  version  INTEGER NOT NULL,
  what     TEXT    NOT NULL,
  at       INTEGER NOT NULL,
  session  INTEGER NOT NULL,
  text     TEXT    NOT NULL,
  PRIMARY KEY (queue, position, version)
) STRICT, WITHOUT ROWID;

UPDATE dibs_store SET version = 2;
