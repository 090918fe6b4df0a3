select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0005_read.sql', true);

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
perform dibs.begin_migration('0005_read.sql', '0004_append.sql');

create view dibs.stored_messages as
select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time, m.category
from dibs.messages m;

create function dibs.refuse_invalid_page(from_position bigint, max_messages integer) returns void
language plpgsql immutable
as $$
begin
  if from_position is null or from_position < 0 then
    raise exception 'invalid position: it is at least 0' using errcode = 'DB001', column = 'from_position';
  end if;
  if max_messages is null or max_messages not between 1 and 10000 then
    raise exception 'invalid limit: it is between 1 and 10000' using errcode = 'DB001', column = 'max_messages';
  end if;
end
$$;

create function dibs.erased_tombstone(stream text)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select m.id, stream, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from dibs.erased_streams e
  join dibs.messages m
    on m.stream_name = split_part(stream, '-', 1) || '-' || encode(e.digest, 'hex') and m.position = e.version
  where e.digest = dibs.name_digest(stream)
    and not exists (select from dibs.messages o where o.stream_name = stream);
end
$$;

create view dibs.erased as
select exists (select from dibs.erased_streams) as any_stream;

create function dibs.read_stream(stream text, from_position bigint default 0, max_messages integer default 1000, backwards boolean default false)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  if (from_position >= 0 and max_messages between 1 and 10000) is not true then
    perform dibs.refuse_invalid_page(from_position, max_messages);
  end if;
  if backwards then
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from dibs.messages m
    where m.stream_name = stream and m.position <= from_position
    order by m.position desc
    limit max_messages;
  else
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from dibs.messages m
    where m.stream_name = stream and m.position >= from_position
    order by m.position
    limit max_messages;
  end if;
  if not found then
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream)) then
      return query
      select t.* from dibs.erased_tombstone(stream) t
      where case when backwards then t.position <= from_position else t.position >= from_position end;
    end if;
  end if;
end
$$;

create function dibs.read_category(
  category text, from_position bigint default 0, max_messages integer default 1000,
  types text[] default null, correlation text default null, group_size integer default null, group_member integer default null
)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz,
  more boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  found_messages integer := 0;
  last bigint;
  newest bigint;
  first_mark json;
begin
  if types is null and correlation is null and group_size is null and group_member is null
    and from_position >= 0 and max_messages between 1 and 10000
  then
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time, null::boolean
    from dibs.messages m
    where m.category = read_category.category and m.global_position >= from_position
    order by m.global_position
    limit max_messages;
    get diagnostics found_messages = row_count;
    if found_messages = 0 then
      global_position := from_position;
      more := false;
    else
      select least(min(p.global_position), 9223372036854775806) + 1, count(*) > 1 into global_position, more
      from (
        select w.global_position
        from dibs.messages w
        where w.category = read_category.category and w.global_position >= from_position
        order by w.global_position
        offset found_messages - 1
        limit 2
      ) p;
    end if;
    return next;
    return;
  end if;

  if (from_position >= 0 and max_messages between 1 and 10000) is not true then
    perform dibs.refuse_invalid_page(from_position, max_messages);
  end if;
  if group_size not between 1 and 1024 or (group_size is null) <> (group_member is null) or group_member < 0 or group_member >= group_size then
    raise exception 'invalid group: the size is 1 to 1024, and the member from 0 and less than the size'
      using errcode = 'DB001', column = 'group_member';
  end if;

  for id, stream_name, type, position, global_position, data, metadata, time in
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from (
      select * from dibs.messages w
      where w.category = read_category.category and w.global_position >= from_position
      order by w.global_position
      limit 10000
    ) m
    where (group_size is null or abs(m.group_hash % group_size) = group_member)
      and (coalesce(cardinality(types), 0) = 0 or m.type = any (types))
      and (correlation is null or m.correlation_category = correlation)
    order by m.global_position
    limit max_messages
  loop
    return next;
    found_messages := found_messages + 1;
  end loop;

  if found_messages = max_messages then
    last := global_position;
    more := exists (
      select from dibs.messages w where w.category = read_category.category and w.global_position > last
    );
  else
    select w.global_position into newest
    from dibs.messages w
    where w.category = read_category.category and w.global_position >= from_position
    order by w.global_position desc
    limit 1;
    last := newest;
    if newest - from_position >= 10000 then
      select w.global_position into last
      from dibs.messages w
      where w.category = read_category.category and w.global_position >= from_position
      order by w.global_position
      offset 9999
      limit 1;
      last := coalesce(last, newest);
    end if;
    more := coalesce(last < newest, false);
  end if;

  if found_messages > 0 then
    id := null; stream_name := null; type := null; position := null; metadata := null; time := null;
  end if;
  if last is not null then
    select w.global_position, json_build_object(
      'id', w.id, 'stream', w.stream_name, 'position', w.position, 'globalPosition', w.global_position,
      'time', case when isfinite(w.time) then (extract(epoch from w.time) * 1000000)::bigint end
    ) into newest, first_mark
    from dibs.messages w
    where w.category = read_category.category and w.global_position >= from_position
    order by w.global_position
    limit 1;
    if newest = last then
      data := json_build_array(first_mark);
    else
      select json_build_array(first_mark, json_build_object(
        'id', w.id, 'stream', w.stream_name, 'position', w.position, 'globalPosition', w.global_position,
        'time', case when isfinite(w.time) then (extract(epoch from w.time) * 1000000)::bigint end
      )) into data
      from dibs.messages w
      where w.category = read_category.category and w.global_position >= last
      order by w.global_position
      limit 1;
    end if;
  end if;
  global_position := case when last is null then from_position else least(last, 9223372036854775806) + 1 end;
  return next;
end
$$;

create function dibs.last_message(stream text, message_type text default null)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return query
  select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from dibs.messages m
  where m.stream_name = stream and (message_type is null or m.type = message_type)
  order by m.position desc
  limit 1;
  if not found then
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream)) then
      return query select t.* from dibs.erased_tombstone(stream) t where message_type is null or t.type = message_type;
    end if;
  end if;
end
$$;

create function dibs.stream_version(stream text) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  return coalesce(
    (select m.position from dibs.messages m where m.stream_name = stream order by m.position desc limit 1),
    (select e.version from dibs.erased_streams e where e.digest = dibs.name_digest(stream)),
    -1
  );
end
$$;

create function dibs.find_messages(stream text, ids uuid[])
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  found_messages integer;
begin
  if stream is null then
    raise exception 'invalid stream: it is no stream name' using errcode = 'DB001', column = 'stream';
  end if;
  if ids is null or cardinality(ids) > 1000 then
    raise exception 'invalid ids: there are at most 1000' using errcode = 'DB001', column = 'ids';
  end if;
  perform dibs.lock_category(split_part(stream, '-', 1));
  return query
  select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from (select distinct u.id from unnest(ids) u (id)) r
  cross join lateral (select * from dibs.messages m where m.id = r.id limit 1) m
  where m.stream_name = stream
  order by m.position;
  get diagnostics found_messages = row_count;

  if found_messages < (select count(distinct u.id) from unnest(ids) u (id)) then
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream))
      or 0 < (select m.position from dibs.messages m where m.stream_name = stream order by m.position limit 1)
        and exists (
          select from dibs.messages m where m.stream_name = stream and m.type = 'dibs:Tombstone' order by m.position desc limit 1
        )
    then
      raise exception 'the stream was deleted, so nobody knows what was written to it'
        using errcode = 'DB002', column = 'stream';
    end if;
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
      raise exception 'what was not written is known at READ COMMITTED only, and this transaction is at %', current_setting('transaction_isolation')
        using errcode = 'feature_not_supported', hint = 'Ask in a transaction of its own, at READ COMMITTED.';
    end if;

    insert into dibs.fences as f (category, fence)
    values (split_part(stream, '-', 1), (extract(epoch from clock_timestamp()) * 1000000)::bigint)
    on conflict (category) do update set fence = greatest(f.fence + 1, excluded.fence);
  else
    perform dibs.await_standby();
  end if;
end
$$;

create function dibs.heads(categories text[]) returns bigint[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return array(
    select coalesce((select m.global_position from dibs.messages m where m.category = c.name order by m.global_position desc limit 1), 0)
    from unnest(categories) with ordinality c (name, number)
    order by c.number
  );
end
$$;

create function dibs.listen() returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  perform pg_advisory_lock_shared(1684628076, 0); -- as dibs.listened says
  perform pg_advisory_lock(1684628076, 1);
  perform pg_advisory_unlock(1684628076, 1);
  listen dibs_messages;
end
$$;

create table dibs.epochs (
  number bigint not null default 0,
  id uuid not null default gen_random_uuid(),
  raised_at timestamptz
);

create unique index epochs_one_row on dibs.epochs ((true));
insert into dibs.epochs default values;

comment on table dibs.epochs is 'One row: how often the epoch was raised, and when last, and an id that it was given then.';

create function dibs.epoch() returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  server text;
begin
  begin
    select concat(c.system_identifier, '/', case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end)
    into server
    from pg_control_system() c;
  exception
    when insufficient_privilege or undefined_function or feature_not_supported then
      server := '/';
  end;
  return concat(server, '/', (select concat(e.number, '.', e.id) from dibs.epochs e));
end
$$;

create function dibs.raise_epoch(id uuid default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  insert into dibs.epochs as e (number, id, raised_at)
  values (1, coalesce(raise_epoch.id, gen_random_uuid()), clock_timestamp())
  on conflict ((true)) do update set number = e.number + 1, id = excluded.id, raised_at = excluded.raised_at
  where e.id <> excluded.id;
  return dibs.epoch();
end
$$;

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0005_read.sql', '93627072ba20c4ae4dab5a35c5661c6e0da92873db25e80b37947d231042b6fc');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
