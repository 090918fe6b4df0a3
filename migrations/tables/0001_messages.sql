-- The messages, and the records of removed ones.
grant usage on schema dibs to dibs_reader, dibs_writer, dibs_admin;

-- Texts are collated "C", so that no upgrade of a locale reorders an index. Data and metadata are
-- json, which keeps each byte as it was written and costs half as much as jsonb to write and to
-- read.
--
-- The functions that write check names and data: those of Dibs more than those of message-db,
-- whose clients may write more.
create table dibs.messages (
  global_position bigserial not null,
  position bigint not null,
  time timestamptz not null default clock_timestamp(),
  stream_name text collate "C" not null,
  type text collate "C" not null,

  -- The results of the functions of these names.
  category text collate "C" not null,
  group_hash bigint not null,
  correlation_category text collate "C",

  id uuid not null,
  data json,
  metadata json,

  -- A category is read in order of global position, and nothing is read by that
  -- alone.
  primary key (category, global_position),
  constraint messages_id unique (id),
  constraint messages_stream unique (stream_name, position)
);

comment on table dibs.messages is 'Messages, only ever added, and only by functions that hold the lock of their category.';

-- A stream that was deleted together with its name. Its version goes on from here, so that an
-- initial write is not accepted a second time. Its tombstone, at that version, is in the stream of
-- its category that is named by the digest in hexadecimal.
create table dibs.erased_streams (
  digest bytea primary key,
  version bigint not null,
  erased_at timestamptz not null default clock_timestamp()
);

comment on table dibs.erased_streams is 'Streams that were deleted with their names: the SHA-256 of the name in UTF-8, and the version the stream was at.';

-- A transaction at REPEATABLE READ or above may be too old to see a removal, and after one no
-- unique index is in its way any more. So every removal counts here, and append looks here on its
-- behalf.
create table dibs.removals (
  category text collate "C" primary key,
  removals bigint not null
);

comment on table dibs.removals is 'How often messages of a category were removed; no row for never.';

