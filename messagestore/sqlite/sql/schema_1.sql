-- One row: which version of these tables the file has, and a counter that is
-- moved to settle an unknown outcome (settle.sql).
CREATE TABLE dibs_store (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
  version  INTEGER NOT NULL,
  settled  INTEGER NOT NULL DEFAULT 0
) STRICT;

-- One writer at a time means that the order of global positions is the order of
-- commits, in every category and across them. AUTOINCREMENT never gives a number
-- twice, also after the last message is gone.
CREATE TABLE dibs_messages (
  global_position      INTEGER PRIMARY KEY AUTOINCREMENT,
  stream_name          TEXT    NOT NULL,
  category             TEXT    NOT NULL,
  position             INTEGER NOT NULL CHECK (position >= 0),
  type                 TEXT    NOT NULL,
  data                 TEXT,
  metadata             TEXT,
  id                   BLOB    NOT NULL CHECK (length(id) = 16),
  group_hash           INTEGER NOT NULL, -- of the cardinal id, for consumer groups
  correlation_category TEXT,
  time                 INTEGER NOT NULL  -- microseconds since 1970, UTC
) STRICT;

CREATE UNIQUE INDEX dibs_messages_stream ON dibs_messages (stream_name, position);
CREATE UNIQUE INDEX dibs_messages_id ON dibs_messages (id);
CREATE INDEX dibs_messages_category ON dibs_messages (category, global_position);

INSERT INTO dibs_store (only_row, version) VALUES (1, 1);
