select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0009_message_store.sql', true);

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
perform dibs.begin_migration('0009_message_store.sql', '0008_rights.sql');

if exists (select from pg_class where relnamespace = to_regnamespace('message_store') and relname = 'messages' and relkind in ('r', 'p')) then
  raise exception 'the schema message_store is message-db''s own'
    using errcode = 'duplicate_object', hint = 'dibs migrate adopt takes it over.';
end if;

declare
  owner constant pg_catalog.text := current_user;
begin
  perform set_config('role', caller, true);
  if to_regrole('message_store') is null then
    begin
      create role message_store login;
      alter role message_store set lock_timeout = '10s';
      alter role message_store set idle_in_transaction_session_timeout = '1min';
    exception
      when duplicate_object or unique_violation then
        null; -- made just now, for another database
      when insufficient_privilege then
        raise notice 'role message_store does not exist and % may not create it', current_user;
    end;
  end if;
  if to_regnamespace('message_store') is null then
    execute format('create schema message_store authorization %I', owner);
  elsif exists (
    select from pg_depend
    where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace('message_store') and classid <> 'pg_default_acl'::regclass
  ) then
    raise exception 'the schema message_store is there already, and is not empty'
      using errcode = 'duplicate_schema', hint = 'Find out whose it is, and rename or drop it.';
  elsif not has_schema_privilege(owner, 'message_store', 'create') or (select rolsuper from pg_roles where rolname = session_user) then
    execute format('alter schema message_store owner to %I', owner);
  end if;
  perform set_config('role', owner, true);
end;

create table dibs.settings (
  sql_condition boolean not null default false,
  strict_names boolean not null default false
);

create unique index settings_one_row on dibs.settings ((true));
insert into dibs.settings default values;

comment on table dibs.settings is
'One row, which the owner may update. With sql_condition, the functions of message_store take a condition, which runs with
the rights of who asks. With strict_names, they refuse names, types and data that dibs.append would refuse.';

create type message_store.message as (
  id varchar,
  stream_name varchar,
  type varchar,
  position bigint,
  global_position bigint,
  data varchar,
  metadata varchar,
  time timestamp
);

create view message_store.messages as
select m.global_position, m.position, m.time at time zone 'UTC' as time, m.stream_name, m.type,
  m.data::jsonb as data, m.metadata::jsonb as metadata, m.id
from dibs.messages m;

alter view message_store.messages alter id set default gen_random_uuid();

create view message_store.stored_messages as
select m.global_position, m.position, m.time at time zone 'UTC' as time, m.stream_name, m.type,
  m.data::jsonb as data, m.metadata::jsonb as metadata, m.id,
  m.category, m.correlation_category,
  case
    when m.stream_name = m.category then null
    when m.stream_name = m.category || '-' or starts_with(m.stream_name, m.category || '-+') then -3162216497309240828
    else m.group_hash
  end as member_hash,
  row(m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
    m.data::varchar, m.metadata::varchar, m.time at time zone 'UTC')::message_store.message as message
from dibs.messages m;

create view message_store.settings as
select s.sql_condition, s.strict_names from dibs.settings s limit 1;

create function message_store.message_store_version() returns varchar
language sql volatile
return '1.3.0'::varchar;

create function message_store.category(stream_name varchar) returns varchar
language sql immutable
return split_part(stream_name, '-', 1)::varchar;

create function message_store.is_category(stream_name varchar) returns boolean
language sql immutable
return coalesce(strpos(stream_name, '-') = 0, true);

create function message_store.id(stream_name varchar) returns varchar
language sql immutable
return case when strpos(stream_name, '-') > 0 then substr(stream_name, strpos(stream_name, '-') + 1)::varchar end;

create function message_store.cardinal_id(stream_name varchar) returns varchar
language sql immutable
return split_part(message_store.id(stream_name), '+', 1)::varchar;

create function message_store.hash_64(value varchar) returns bigint
language sql immutable
return ('x' || left(md5(value), 16))::bit(64)::bigint;

create function message_store.acquire_lock(stream_name varchar) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  category constant varchar := message_store.category(stream_name);
  hash constant bigint := message_store.hash_64(category);
begin
  perform dibs.lock_category(category);

  if 'on' in (current_setting('message_store.debug_write', true), current_setting('message_store.debug', true)) then
    raise notice '» acquire_lock';
    raise notice 'stream_name: %', stream_name;
    raise notice '_category: %', category;
    raise notice '_category_name_hash: %', hash;
  end if;
  return hash;
end
$$;

create function message_store.stream_version(stream_name varchar) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return nullif(dibs.stream_version(stream_name), -1);
end
$$;

create function dibs.refuse_removed(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  place tid;
begin
  if category is null or current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    return;
  end if;
  insert into dibs.removals as r values (category, 0)
  on conflict on constraint removals_pkey do update set removals = r.removals where false
  returning r.ctid into place;
  delete from dibs.removals r where r.ctid = place;
end
$$;

create function dibs.refuse_unlike_append(stream_name text, type text, data json) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  strict_names constant boolean := (select s.strict_names from dibs.settings s);
begin
  if strict_names and not dibs.valid_stream_name(stream_name) then
    raise exception 'invalid stream_name: it is no stream name' using column = 'stream_name';
  end if;
  if starts_with(type, 'dibs:') or strict_names and not dibs.valid_type(type) then
    raise exception 'invalid type: it is no message type' using column = 'type';
  end if;
  if strict_names and data is not null and not dibs.valid_data(data) then
    raise exception 'invalid data: it is not an object that can be stored' using column = 'data';
  end if;
end
$$;

create function message_store.write_message(
  id varchar, stream_name varchar, type varchar, data jsonb, metadata jsonb default null, expected_version bigint default null
) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  version bigint;
begin
  perform dibs.refuse_unlike_append(stream_name, type, data::json);
  perform message_store.acquire_lock(stream_name);
  perform dibs.refuse_removed(message_store.category(stream_name));

  version := dibs.stream_version(stream_name);
  if expected_version <> version then
    raise exception 'Wrong expected version: % (Stream: %, Stream Version: %)', expected_version, stream_name, version;
  end if;
  if version >= 0 then
    perform dibs.begin_again(stream_name);
  end if;

  insert into dibs.messages (category, group_hash, correlation_category, id, stream_name, position, type, data, metadata, time)
  values (dibs.category(write_message.stream_name), dibs.group_hash(write_message.stream_name), dibs.correlation_category(write_message.metadata::json),
    write_message.id::uuid, write_message.stream_name, version + 1, write_message.type,
    write_message.data::json, write_message.metadata::json, now());

  if 'on' in (current_setting('message_store.debug_write', true), current_setting('message_store.debug', true)) then
    raise notice '» write_message';
    raise notice 'id ($1): %', id;
    raise notice 'stream_name ($2): %', stream_name;
    raise notice 'type ($3): %', type;
    raise notice 'data ($4): %', data;
    raise notice 'metadata ($5): %', metadata;
    raise notice 'expected_version ($6): %', expected_version;
    raise notice '_stream_version: %', version;
    raise notice '_next_position: %', version + 1;
  end if;
  return version + 1;
end
$$;

create function dibs.insert_message() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if new.global_position is not null or new.time is not null then
    raise exception 'a message gets its global_position and its time when it is written' using errcode = 'generated_always';
  end if;
  new.position := message_store.write_message(new.id::varchar, new.stream_name, new.type, new.data, new.metadata, new.position - 1);
  select m.global_position, m.time at time zone 'UTC' into new.global_position, new.time
  from dibs.messages m
  where m.id = new.id;
  return new;
end
$$;

create trigger messages_insert instead of insert on message_store.messages
for each row execute function dibs.insert_message();

create trigger messages_append_only instead of update or delete on message_store.messages
for each row execute function dibs.refuse_change();

create trigger messages_append_only instead of insert or update or delete on message_store.stored_messages
for each row execute function dibs.refuse_change();

create function message_store.get_stream_messages(
  stream_name varchar, "position" bigint default 0, batch_size bigint default 1000, condition varchar default null
) returns setof message_store.message
language plpgsql volatile
set search_path = pg_catalog, message_store, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  debug constant boolean := coalesce('on' in (current_setting('message_store.debug_get', true), current_setting('message_store.debug', true)), false);
  command text := 'select (message).* from message_store.stored_messages stored where stream_name = $1 and position >= $2';
  parsed refcursor;
begin
  if strpos(stream_name, '-') > 0 is not true then
    raise exception 'Must be a stream name: %', stream_name;
  end if;
  position := coalesce(position, 0);
  batch_size := coalesce(batch_size, 1000);

  if condition is null and not debug then
    return query
    select (m.message).*
    from message_store.stored_messages m
    where m.stream_name = get_stream_messages.stream_name and m.position >= get_stream_messages.position
    order by m.position
    limit nullif(batch_size, -1);
    return;
  end if;

  if condition is not null then
    if (select s.sql_condition from message_store.settings s) is not true then
      raise exception 'Retrieval with SQL condition is not activated';
    end if;
    command := command || ' and exists (select from (select stored.global_position, stored.position, stored.time,
      stored.stream_name collate "default" as stream_name, stored.type collate "default" as type,
      stored.data, stored.metadata, stored.id) messages where true and (' || condition || '))';
  end if;
  command := command || ' order by position limit nullif($3, -1)';

  if debug then
    raise notice '» get_stream_messages';
    raise notice 'stream_name ($1): %', stream_name;
    raise notice 'position ($2): %', position;
    raise notice 'batch_size ($3): %', batch_size;
    raise notice 'condition ($4): %', condition;
    raise notice 'Generated Command: %', command;
  end if;

  if condition is not null then
    open parsed for execute command using stream_name, position, batch_size;
    close parsed;
    open parsed for execute 'select case when
' || condition || '
then true end from message_store.messages' using stream_name, position, batch_size;
    close parsed;
  end if;
  return query execute command using stream_name, position, batch_size;
end
$$;

create function message_store.get_category_messages(
  category varchar, "position" bigint default 1, batch_size bigint default 1000, correlation varchar default null,
  consumer_group_member bigint default null, consumer_group_size bigint default null, condition varchar default null
) returns setof message_store.message
language plpgsql volatile
set search_path = pg_catalog, message_store, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  debug constant boolean := coalesce('on' in (current_setting('message_store.debug_get', true), current_setting('message_store.debug', true)), false);
  command text := 'select (message).* from message_store.stored_messages stored where category = $1 and global_position >= $2';
  size smallint;
  parsed refcursor;
  wrong text;
begin
  if strpos(category, '-') > 0 then
    raise exception 'Must be a category: %', category;
  end if;
  position := coalesce(position, 1);
  batch_size := coalesce(batch_size, 1000);

  if strpos(correlation, '-') > 0 then
    raise exception 'Correlation must be a category (Correlation: %)', correlation;
  end if;

  wrong := case
    when (consumer_group_member is null) <> (consumer_group_size is null) then 'Consumer group member and size must be specified'
    when consumer_group_size < 1 then 'Consumer group size must not be less than 1'
    when consumer_group_member < 0 then 'Consumer group member must not be less than 0'
    when consumer_group_member >= consumer_group_size then 'Consumer group member must be less than the group size'
  end;
  if wrong is not null then
    raise exception '% (Consumer Group Member: %, Consumer Group Size: %)', wrong, consumer_group_member, consumer_group_size;
  end if;

  if condition is null and not debug then
    size := consumer_group_size;
    return query
    select (m.message).*
    from message_store.stored_messages m
    where m.category = get_category_messages.category and m.global_position >= get_category_messages.position
      and (correlation is null or m.correlation_category = correlation)
      and (size is null or abs(m.member_hash % size) = consumer_group_member)
    order by m.global_position
    limit nullif(batch_size, -1);
    return;
  end if;

  if correlation is not null then
    command := command || ' and correlation_category = $4';
  end if;
  if consumer_group_size is not null then
    command := command || ' and abs(member_hash % $6) = $5';
  end if;
  if condition is not null then
    if (select s.sql_condition from message_store.settings s) is not true then
      raise exception 'Retrieval with SQL condition is not activated';
    end if;
    command := command || ' and exists (select from (select stored.global_position, stored.position, stored.time,
      stored.stream_name collate "default" as stream_name, stored.type collate "default" as type,
      stored.data, stored.metadata, stored.id) messages where true and (' || condition || '))';
  end if;
  command := command || ' order by global_position limit nullif($3, -1)';

  if debug then
    raise notice '» get_category_messages';
    raise notice 'category ($1): %', category;
    raise notice 'position ($2): %', position;
    raise notice 'batch_size ($3): %', batch_size;
    raise notice 'correlation ($4): %', correlation;
    raise notice 'consumer_group_member ($5): %', consumer_group_member;
    raise notice 'consumer_group_size ($6): %', consumer_group_size;
    raise notice 'condition: %', condition;
    raise notice 'Generated Command: %', command;
  end if;

  if condition is not null then
    open parsed for execute command
      using category, position, batch_size, correlation, consumer_group_member, consumer_group_size::smallint;
    close parsed;
    open parsed for execute 'select case when
' || condition || '
then true end from message_store.messages'
      using category, position, batch_size, correlation, consumer_group_member, consumer_group_size::smallint;
    close parsed;
  end if;
  return query execute command
    using category, position, batch_size, correlation, consumer_group_member, consumer_group_size::smallint;
end
$$;

create function message_store.get_last_stream_message(stream_name varchar, type varchar default null)
returns setof message_store.message
language plpgsql volatile
set search_path = pg_catalog, message_store, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  if 'on' in (current_setting('message_store.debug_get', true), current_setting('message_store.debug', true)) then
    raise notice '» get_last_message';
    raise notice 'stream_name ($1): %', stream_name;
    raise notice 'type ($2): %', type;
    raise notice 'Generated Command: %', 'select (message).* from message_store.stored_messages stored where stream_name = $1'
      || case when type is null then '' else ' and type = $2' end || ' order by position desc limit 1';
  end if;

  return query
  select (m.message).*
  from message_store.stored_messages m
  where m.stream_name = get_last_stream_message.stream_name
    and (get_last_stream_message.type is null or m.type = get_last_stream_message.type)
  order by m.position desc
  limit 1;
end
$$;

create view message_store.stream_summary as
select m.stream_name collate "default" as stream_name,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1 order by 1;

create view message_store.type_summary as
select m.type collate "default" as type,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1 order by 1;

create view message_store.stream_type_summary as
select m.stream_name collate "default" as stream_name, m.type collate "default" as type,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1, 2 order by 1, 2;

create view message_store.type_stream_summary as
select m.type collate "default" as type, m.stream_name collate "default" as stream_name,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1, 2 order by 1, 2;

create view message_store.category_type_summary as
select m.category::varchar collate "default" as category, m.type collate "default" as type,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1, 2 order by 1, 2;

create view message_store.type_category_summary as
select m.type collate "default" as type, m.category::varchar collate "default" as category,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1, 2 order by 1, 2;

perform dibs.revoke_defaults('dibs');
perform dibs.revoke_defaults('message_store');

perform dibs.grant_rights();

insert into dibs.migrations (name, sha256)
values ('0009_message_store.sql', 'ca75039d6fddeb9d97551c773946238d8f11dfb761c6e1266a9897e8524814c4');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
