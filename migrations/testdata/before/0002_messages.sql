-- +goose Up
-- +goose StatementBegin
-- Where messages are kept.
select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0002_messages.sql', true);

do $migration$
declare
  caller constant pg_catalog.text := pg_catalog.current_setting('role');
  path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs')
  and pg_has_role(session_user, nspowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end);
perform dibs.begin_migration('0002_messages.sql', '0001_schema.sql');

-- What is found by, and stands in columns of its own. Generated columns would say the
-- same, but every statement that adds messages would read their expressions anew, and
-- store each row twice: that is half as long again for a message, and more for one by
-- itself. So whoever adds messages puts in what these return, and dibs.verify_table
-- looks whether they did.
create function dibs.category(stream_name text) returns text
language sql immutable parallel safe
return split_part(stream_name, '-', 1);

comment on function dibs.category(text) is 'The category of a stream: what is before the first dash.';

create function dibs.group_hash(stream_name text) returns bigint
language sql immutable parallel safe
return ('x' || left(md5(coalesce(
    nullif(split_part(substr(stream_name, nullif(strpos(stream_name, '-'), 0) + 1), '+', 1), ''),
    split_part(stream_name, '-', 1)
  )), 16))::bit(64)::bigint;

comment on function dibs.group_hash(text) is
'What consumer groups are divided by: message-db''s hash_64, the first half of the MD5, of the cardinal identifier (between
the first dash and the first plus sign), or of the category where there is none.';

create function dibs.correlation_category(metadata json) returns text
language sql immutable parallel safe
return split_part(metadata ->> 'correlationStreamName', '-', 1);

comment on function dibs.correlation_category(json) is 'The category of the stream that the metadata is correlated with, or null.';

-- Texts are collated "C", so that no upgrade of a locale reorders an index. Data
-- and metadata are json, which keeps what was written byte for byte and costs
-- half of what jsonb does to write and to read.
--
-- What may be written is said by the functions that write: more by ours than by those
-- of message-db, whose clients may write names and data that ours would not.
create table dibs.messages (
  global_position bigserial not null,
  position bigint not null,
  time timestamptz not null default clock_timestamp(),
  stream_name text collate "C" not null,
  type text collate "C" not null,

  -- What the functions of these names return.
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

-- Whoever has rights on the table is held to that too. The functions that trim and
-- delete set dibs.retention for themselves. Anybody can set that, so it counts for who
-- may be the owner, as those functions are.
create function dibs.refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'DELETE' and current_setting('dibs.retention', true) = 'on'
    and pg_has_role(current_user, (select c.relowner from pg_class c where c.oid = tg_relid), 'member')
  then
    return null;
  end if;
  raise exception 'messages are only ever added: % of dibs.messages is refused', lower(tg_op)
    using errcode = 'insufficient_privilege', hint = 'To remove messages, call dibs.trim or dibs.delete_stream.';
end
$$;

create trigger messages_append_only before update or delete or truncate on dibs.messages
for each statement execute function dibs.refuse_change();

-- A stream that was deleted together with its name. Its version goes on from
-- here, so that what was written to it first is not written first again. Its
-- tombstone, at that version, is in the stream of its category that is named by
-- the digest in hexadecimal.
create table dibs.erased_streams (
  digest bytea primary key,
  version bigint not null,
  erased_at timestamptz not null default clock_timestamp()
);

comment on table dibs.erased_streams is 'Streams that were deleted with their names: the SHA-256 of the name in UTF-8, and the version the stream was at.';

-- Stable, as convert_to is: an immutable function of it would be called, at the price of
-- an empty read, where this one becomes part of the statement.
create function dibs.name_digest(stream text) returns bytea
language sql stable parallel safe
return sha256(convert_to(stream, 'UTF8'));

comment on function dibs.name_digest(text) is 'By what a stream is known in dibs.erased_streams.';

-- A transaction at REPEATABLE READ or above may be too old to see what was removed,
-- and where that was no unique index is in its way any more. So every removal counts
-- here, and append looks here on its behalf.
create table dibs.removals (
  category text collate "C" primary key,
  removals bigint not null
);

comment on table dibs.removals is 'How often messages of a category were removed; no row for never.';

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0002_messages.sql', '344723a93face5c968de24f8a9e9d75c1679fa61c578504c37665d67fe0e8735');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
-- +goose StatementEnd
