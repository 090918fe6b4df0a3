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

-- Texts are collated "C", so that no upgrade of a locale reorders an index. Data
-- and metadata are json, which keeps what was written byte for byte and costs
-- half of what jsonb does to write and to read.
--
-- The checks are what every client obeys. Our functions refuse more; clients of
-- message-db may write names and data that they would not.
create table dibs.messages (
  global_position bigserial not null,
  position bigint not null,
  time timestamptz not null default clock_timestamp(),
  stream_name text collate "C" not null,
  type text collate "C" not null,

  -- Before the first dash.
  category text collate "C" not null
    generated always as (split_part(stream_name, '-', 1)) stored,

  -- What consumer groups are divided by: message-db's hash_64, the first half of
  -- the MD5, of the cardinal identifier (between the first dash and the first
  -- plus sign), or of the category where there is none.
  group_hash bigint not null
    generated always as (
      ('x' || left(md5(coalesce(
        nullif(split_part(substr(stream_name, nullif(strpos(stream_name, '-'), 0) + 1), '+', 1), ''),
        split_part(stream_name, '-', 1)
      )), 16))::bit(64)::bigint
    ) stored,

  correlation_category text collate "C"
    generated always as (split_part(metadata ->> 'correlationStreamName', '-', 1)) stored,

  id uuid not null,
  data json,
  metadata json,

  -- A category is read in order of global position, and nothing is read by that
  -- alone.
  primary key (category, global_position),
  constraint messages_id unique (id),
  constraint messages_stream unique (stream_name, position),
  constraint messages_position check (position >= 0),
  constraint messages_global_position check (global_position >= 1)
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
values ('0002_messages.sql', 'abc4466a21a0b30bc7894dbd3835f92aab2acf9e9ba3e30c0926d24e91712571');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
-- +goose StatementEnd
