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

create function dibs.category(stream_name text) returns text
language sql immutable parallel safe
return split_part(stream_name, '-', 1);

create function dibs.group_hash(stream_name text) returns bigint
language sql immutable parallel safe
return ('x' || left(md5(coalesce(
    nullif(split_part(substr(stream_name, nullif(strpos(stream_name, '-'), 0) + 1), '+', 1), ''),
    split_part(stream_name, '-', 1)
  )), 16))::bit(64)::bigint;

create function dibs.correlation_category(metadata json) returns text
language sql immutable parallel safe
return split_part(metadata ->> 'correlationStreamName', '-', 1);

create table dibs.messages (
  global_position bigserial not null,
  position bigint not null,
  time timestamptz not null default clock_timestamp(),
  stream_name text collate "C" not null,
  type text collate "C" not null,

  category text collate "C" not null,
  group_hash bigint not null,
  correlation_category text collate "C",

  id uuid not null,
  data json,
  metadata json,

  primary key (category, global_position),
  constraint messages_id unique (id),
  constraint messages_stream unique (stream_name, position)
);

comment on table dibs.messages is 'Messages, only ever added, and only by functions that hold the lock of their category.';

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

create table dibs.erased_streams (
  digest bytea primary key,
  version bigint not null,
  erased_at timestamptz not null default clock_timestamp()
);

comment on table dibs.erased_streams is 'Streams that were deleted with their names: the SHA-256 of the name in UTF-8, and the version the stream was at.';

create function dibs.name_digest(stream text) returns bytea
language sql stable parallel safe
return sha256(convert_to(stream, 'UTF8'));

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
