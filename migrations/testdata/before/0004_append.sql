select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0004_append.sql', true);

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
perform dibs.begin_migration('0004_append.sql', '0003_validation.sql');

create function dibs.lock_key(category text) returns integer
language sql immutable parallel safe
return hashtext('dibs.' || category);

create function dibs.lock_category(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock(1684628083, dibs.lock_key(category));
end
$$;

create function dibs.wait_for_category(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  perform pg_advisory_xact_lock(1684628083, dibs.lock_key(category));
end
$$;

create function dibs.listened() returns boolean
language sql volatile
return not case
  when not pg_try_advisory_xact_lock_shared(1684628076, 1) then false
  when pg_try_advisory_lock(1684628076, 0) then pg_advisory_unlock(1684628076, 0)
  else false
end;

create table dibs.fences (
  category text collate "C" primary key,
  fence bigint not null,

  erased boolean not null default false
);

comment on table dibs.fences is
'How often find_messages did not find something in a category, and whether a stream of it was ever erased; no row for never.';

create function dibs.refuse_invalid(
  streams text[], expected bigint[], counts integer[],
  ids uuid[], types text[], data json[], metadata json[]
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  asked constant integer := coalesce(cardinality(streams), 0);
  messages constant integer := coalesce(cardinality(ids), 0);
  field text;
  rule text;
  at integer;
begin
  if asked not between 1 and 100 then
    field := 'streams'; rule := 'there are 1 to 100 streams';
  elsif cardinality(expected) is distinct from asked then
    field := 'expected'; rule := 'there is one expected version for each stream';
  elsif cardinality(counts) is distinct from asked then
    field := 'counts'; rule := 'there is one count for each stream';
  elsif messages not between 1 and 1000 then
    field := 'ids'; rule := 'there are 1 to 1000 messages';
  elsif cardinality(types) is distinct from messages then
    field := 'types'; rule := 'there is one type for each message';
  elsif cardinality(data) is distinct from messages then
    field := 'data'; rule := 'there is one for each message';
  elsif cardinality(metadata) is distinct from messages then
    field := 'metadata'; rule := 'there is one, or null, for each message';
  elsif (select count(*) from unnest(counts) c where c >= 0) <> asked
    or (select sum(c) from unnest(counts) c) <> messages
  then
    field := 'counts'; rule := 'together they are the number of messages';
  end if;

  if field is null then
    select s.n, case
        when not dibs.valid_stream_name(s.name) then 'it is no stream name'
        when s.nth > 1 then 'the stream is named twice'
      end
    into at, rule
    from (
      select u.n, u.name, row_number() over (partition by u.name order by u.n) as nth
      from unnest(streams) with ordinality u (name, n)
    ) s
    where not dibs.valid_stream_name(s.name) or s.nth > 1
    order by s.n
    limit 1;
    if found then
      field := 'streams';
    end if;
  end if;

  if field is null then
    select s.n into at
    from unnest(expected, counts) with ordinality s (version, count, n)
    where s.version is null or s.version < -2 or s.count = 0 and s.version = -2
    order by s.n
    limit 1;
    if found then
      field := 'expected'; rule := 'it is a position from 0, -1 for no stream, or, with messages, -2 for any version';
    end if;
  end if;

  if field is null then
    select r.n, case
        when r.id is null or r.id = '00000000-0000-0000-0000-000000000000' or r.nth > 1 then 'ids'
        when not dibs.valid_type(r.type) then 'types'
        when not dibs.valid_data(r.data) then 'data'
        when not dibs.valid_metadata(r.metadata) then 'metadata'
        else 'data'
      end, case
        when r.nth > 1 then 'the id is there twice'
        when r.id is null or r.id = '00000000-0000-0000-0000-000000000000' then 'it is no message id'
        when not dibs.valid_type(r.type) then 'it is no message type'
        when not dibs.valid_data(r.data) then 'it is not an object that can be stored'
        when not dibs.valid_metadata(r.metadata) then 'it is not metadata that can be stored'
        else 'data and metadata together are at most 983040 bytes'
      end
    into at, field, rule
    from (
      select u.*, row_number() over (partition by u.id order by u.n) as nth
      from unnest(ids, types, data, metadata) with ordinality u (id, type, data, metadata, n)
    ) r
    where r.id is null or r.id = '00000000-0000-0000-0000-000000000000' or r.nth > 1
      or not dibs.valid_type(r.type)
      or not dibs.valid_data(r.data)
      or not dibs.valid_metadata(r.metadata)
      or octet_length(r.data::text) + coalesce(octet_length(r.metadata::text), 0) > 983040
    order by r.n
    limit 1;
  end if;

  if field is null and
    (select sum(octet_length(r.data::text) + coalesce(octet_length(r.metadata::text), 0))
     from unnest(data, metadata) r (data, metadata)) > 16777216
  then
    field := 'data'; rule := 'all data and metadata together are at most 16777216 bytes';
  end if;

  if field is not null then
    raise exception 'invalid %: %', field || coalesce('[' || at || ']', ''), rule
      using errcode = 'DB001', column = field, hint = rule;
  end if;
end
$$;

create function dibs.await_standby() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('synchronous_standby_names') <> '' then
    perform pg_logical_emit_message(true, 'dibs', '');
  end if;
end
$$;

create function dibs.find_recorded(
  streams text[], expected bigint[], counts integer[],
  ids uuid[], types text[], data json[], metadata json[],
  out outcome text, out stream text, out version bigint, out global_position bigint, out id uuid
) returns setof record
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  recorded integer;
  at record;
begin
  select count(*) into recorded
  from unnest(ids) r (id)
  cross join lateral (select from dibs.messages m where m.id = r.id limit 1) m;
  if recorded = 0 then
    return;
  end if;

  select f.* into at
  from (
    select r.n, m.id, m.stream_name, m.position,
      m.stream_name <> s.name
        or m.type <> r.type
        or m.data::jsonb is distinct from r.data::jsonb
        or m.metadata::jsonb is distinct from r.metadata::jsonb
        or m.position <> lag(m.position) over (partition by s.name order by r.n) + 1 as differs
    from (
      select u.name, sum(u.count) over (order by u.n) as upto, u.count
      from unnest(streams, counts) with ordinality u (name, count, n)
    ) s
    join unnest(ids, types, data, metadata) with ordinality r (id, type, data, metadata, n)
      on r.n > s.upto - s.count and r.n <= s.upto
    left join lateral (select * from dibs.messages m where m.id = r.id limit 1) m on true
  ) f
  where f.id is not null and (f.differs or recorded < cardinality(ids))
  order by f.differs desc, f.n
  limit 1;
  if found then
    return query select 'id_conflict', at.stream_name, at.position, null::bigint, at.id;
    return;
  end if;

  return query
  with asked as (
    select s.n, s.name, s.expected, s.count, m.position, m.global_position
    from (
      select u.*, sum(u.count) over (order by u.n) as upto
      from unnest(streams, expected, counts) with ordinality u (name, expected, count, n)
    ) s
    left join unnest(ids) with ordinality r (id, n) on s.count > 0 and r.n = s.upto
    left join lateral (select * from dibs.messages m where m.id = r.id limit 1) m on true
  )
  select 'duplicate', a.name, coalesce(a.position, a.expected), coalesce(a.global_position, 0), null::uuid
  from asked a
  where not exists (select from asked gone where gone.count > 0 and gone.position is null)
  order by a.n;
end
$$;

create function dibs.taken(stream text, version bigint, id uuid) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  violated text;
begin
  insert into dibs.messages (category, group_hash, stream_name, position, type, id)
  values (dibs.category(stream), 0, stream, version, 'probe', id);
  raise exception using errcode = 'DB000';
exception
  when sqlstate 'DB000' then
    return false;
  when unique_violation then
    get stacked diagnostics violated = constraint_name;
    if regexp_replace(violated, '_cc(new|old)[0-9]*$', '') not in ('messages_id', 'messages_stream') then
      raise; -- as in append
    end if;
    return true;
end
$$;

create function dibs.begin_again(stream text) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  sought constant bytea := dibs.name_digest(stream);
  version bigint;
begin
  select e.version into version from dibs.erased_streams e where e.digest = sought;
  if not found or exists (select from dibs.messages m where m.stream_name = stream) then
    return null;
  end if;
  insert into dibs.messages (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
  select dibs.category(stream), dibs.group_hash(stream), dibs.correlation_category(t.metadata),
    stream, version, 'dibs:Tombstone', gen_random_uuid(), coalesce(t.data, '{"nameErased":true}'), t.metadata
  from (select) s
  left join dibs.messages t
    on t.stream_name = split_part(stream, '-', 1) || '-' || encode(sought, 'hex') and t.position = version;
  delete from dibs.erased_streams e where e.digest = sought;
  return version;
end
$$;

create function dibs.append(
  streams text[], expected bigint[], counts integer[],
  ids uuid[], types text[], data json[], metadata json[],
  fences bigint[] default null, notify boolean default false,
  out outcome text, out stream text, out version bigint, out global_position bigint, out id uuid
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- a plan made for an empty table is kept when it grows
set enable_bitmapscan = off
as $$
declare
  current constant boolean := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');

  at record;
  violated text; -- the constraint that was in the way, if one was
begin
  perform dibs.refuse_invalid(streams, expected, counts, ids, types, data, metadata);

  perform pg_advisory_xact_lock(1684628083, k.key)
  from (select distinct dibs.lock_key(split_part(s.name, '-', 1)) as key from unnest(streams) s (name) order by 1) k;

  if not current then
    insert into dibs.removals (category, removals)
    select distinct split_part(s.name, '-', 1), 0 from unnest(streams) s (name) order by 1
    on conflict do nothing;
    perform from dibs.removals r
    where r.category in (select split_part(s.name, '-', 1) from unnest(streams) s (name))
    for share;
  end if;

  if fences is not null then
    if cardinality(fences) <> cardinality(streams) then
      raise exception 'invalid fences: there is one for each stream' using errcode = 'DB001', column = 'fences';
    end if;
    if not current then
      insert into dibs.fences (category, fence)
      select distinct split_part(s.name, '-', 1), 0 from unnest(streams) s (name) order by 1
      on conflict do nothing;
      perform from dibs.fences f
      where f.category in (select split_part(s.name, '-', 1) from unnest(streams) s (name))
      for update;
    end if;
    select s.name, coalesce(f.fence, 0) as fence into at
    from unnest(streams, fences) with ordinality s (name, fence, n)
    left join lateral (select * from dibs.fences l where l.category = split_part(s.name, '-', 1) limit 1) f on true
    where s.fence is distinct from coalesce(f.fence, 0)
    order by s.n
    limit 1;
    if found then
      return query select 'fenced', at.name, at.fence, null::bigint, null::uuid;
      return;
    end if;
  end if;

  loop
    violated := null;

    select s.name, m.position as version into at
    from unnest(streams, expected) with ordinality s (name, expected, n)
    cross join lateral (
      select coalesce(
        (select v.position from dibs.messages v where v.stream_name = s.name order by v.position desc limit 1),
        (select e.version from dibs.erased_streams e where e.digest = dibs.name_digest(s.name)),
        -1
      ) as position
    ) m
    where s.expected <> -2 and s.expected <> m.position
    order by s.n
    limit 1;

    if not found and not current then
      select s.name, s.expected + 1 as version into at
      from unnest(streams, expected, counts) with ordinality s (name, expected, count, n)
      where s.count = 0 and dibs.taken(s.name, s.expected + 1, gen_random_uuid())
      order by s.n
      limit 1;
    end if;

    if not found then
      begin
        if exists (select from dibs.erased_streams) then
          perform dibs.begin_again(s.name) from unnest(streams, counts) s (name, count) where s.count > 0;
        end if;

        return query
        with added as (
          insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
          select dibs.category(s.name), dibs.group_hash(s.name), dibs.correlation_category(r.metadata),
            s.name, s.version + r.n - (s.upto - s.count), r.type, r.id, r.data, r.metadata
          from (
            select u.name, u.count, sum(u.count) over (order by u.n) as upto, coalesce(v.position, -1) as version
            from unnest(streams, counts) with ordinality u (name, count, n)
            left join lateral (
              select m.position from dibs.messages m where m.stream_name = u.name order by m.position desc limit 1
            ) v on true
          ) s
          join unnest(ids, types, data, metadata) with ordinality r (id, type, data, metadata, n)
            on r.n > s.upto - s.count and r.n <= s.upto
          order by r.n
          returning m.stream_name, m.position, m.global_position
        )
        select 'written', s.name, coalesce(max(a.position), s.expected), coalesce(max(a.global_position), 0), null::uuid
        from unnest(streams, expected) with ordinality s (name, expected, n)
        left join added a on a.stream_name = s.name
        group by s.n, s.name, s.expected
        order by s.n;
        if notify and dibs.listened() then
          perform pg_notify('dibs_messages', 'dibs.' || k.category || '-' || (
            select m.global_position from dibs.messages m where m.category = k.category order by m.global_position desc limit 1
          ))
          from (select distinct split_part(s.name, '-', 1) as category from unnest(streams, counts) s (name, count) where s.count > 0) k;
        end if;
        return;
      exception
        when unique_violation then
          get stacked diagnostics violated = constraint_name;
          if regexp_replace(violated, '_cc(new|old)[0-9]*$', '') not in ('messages_id', 'messages_stream')
            and not exists (select from dibs.find_recorded(streams, expected, counts, ids, types, data, metadata))
          then
            raise;
          end if;
      end;
    end if;

    return query select r.* from dibs.find_recorded(streams, expected, counts, ids, types, data, metadata) r;
    if found then
      perform dibs.await_standby();
      return;
    end if;
    if violated is null then
      perform dibs.await_standby();
      return query select 'version_conflict', at.name, at.version, null::bigint, null::uuid;
      return;
    end if;
    exit when not current;
  end loop;

  perform from unnest(ids) r (id) where dibs.taken('', 9223372036854775807, r.id) limit 1;
  if not found then
    select s.name, s.expected + 1 as version into at
    from unnest(streams, expected) with ordinality s (name, expected, n)
    where s.expected <> -2 and dibs.taken(s.name, s.expected + 1, gen_random_uuid())
    order by s.n
    limit 1;
    if found then
      return query select 'version_conflict', at.name, at.version, null::bigint, null::uuid;
      return;
    end if;
  end if;
  raise exception 'could not serialize access due to messages added since the transaction began'
    using errcode = 'serialization_failure';
end
$$;

create function dibs.append_one(
  stream text, expected bigint, message_id uuid, type text, data json, metadata json,
  fence bigint default null, notify boolean default false,
  out outcome text, out version bigint, out global_position bigint, out id uuid
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off -- a plan made for an empty table is kept when it grows
as $$
declare
  stream_category constant text := split_part(stream, '-', 1);
  fence_found bigint; -- -1 if a stream of the category was erased, perhaps this one
begin
  if stream <> '' and expected >= -2 and message_id <> '00000000-0000-0000-0000-000000000000'
    and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
  then
    if not pg_try_advisory_xact_lock(1684628083, dibs.lock_key(stream_category)) then
      perform dibs.wait_for_category(stream_category);
    end if;

    select
      coalesce((select m.position from dibs.messages m where m.stream_name = append_one.stream order by m.position desc limit 1), -1),
      coalesce((select case when not f.erased then f.fence else -1 end from dibs.fences f where f.category = stream_category), 0)
    into version, fence_found;

    if fence_found < 0 or fence <> fence_found then
      null;
    elsif expected = version or expected = -2 then
      if (version >= 0 or dibs.valid_stream_name(stream)) and dibs.valid_type(type) and dibs.valid_content(data, metadata) then
        insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
        values (stream_category, dibs.group_hash(append_one.stream), dibs.correlation_category(append_one.metadata),
          append_one.stream, append_one.version + 1, append_one.type, message_id, append_one.data, append_one.metadata)
        returning m.position, m.global_position into version, global_position;
        if notify and dibs.listened() then
          perform pg_notify('dibs_messages', 'dibs.' || stream_category || '-' || global_position);
        end if;
        outcome := 'written';
        return;
      end if;
    elsif not exists (select from dibs.messages m where m.id = message_id) then
      perform dibs.await_standby();
      outcome := 'version_conflict';
      return;
    end if;
  end if;

  select a.outcome, a.version, a.global_position, a.id into outcome, version, global_position, id
  from dibs.append(array[stream], array[expected], array[1], array[message_id], array[type], array[data], array[metadata],
    case when fence is not null then array[fence] end, notify) a;
end
$$;

create function dibs.refuse_invalid_each(
  streams text[], expected bigint[], counts integer[], fences bigint[],
  ids uuid[], types text[], data json[], metadata json[]
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  writes constant integer := coalesce(cardinality(streams), 0);
  messages constant integer := coalesce(cardinality(ids), 0);
  of_writes constant text := '[1:' || writes || ']';
  of_messages constant text := '[1:' || messages || ']';
  field text;
  rule text;
begin
  if writes not between 1 and 1000 then
    field := 'streams'; rule := 'there are 1 to 1000 writes';
  elsif messages not between 1 and 1000 then
    field := 'ids'; rule := 'there are 1 to 1000 messages';
  elsif array_dims(streams) <> of_writes then
    field := 'streams'; rule := 'it is one list, from 1 on';
  elsif array_dims(expected) is distinct from of_writes then
    field := 'expected'; rule := 'there is one expected version for each write';
  elsif array_dims(counts) is distinct from of_writes then
    field := 'counts'; rule := 'there is one count for each write';
  elsif array_dims(fences) is distinct from of_writes then
    field := 'fences'; rule := 'there is one for each write';
  elsif array_dims(ids) <> of_messages then
    field := 'ids'; rule := 'it is one list, from 1 on';
  elsif array_dims(types) is distinct from of_messages then
    field := 'types'; rule := 'there is one type for each message';
  elsif array_dims(data) is distinct from of_messages then
    field := 'data'; rule := 'there is one for each message';
  elsif array_dims(metadata) is distinct from of_messages then
    field := 'metadata'; rule := 'there is one, or null, for each message';
  elsif pg_column_size(data) + pg_column_size(metadata) > 16777216 then
    field := 'data'; rule := 'the arrays of data and metadata together are at most 16777216 bytes';
  elsif exists (
    select from unnest(streams, expected, counts, fences) w (stream, expected, count, fence)
    where (w.stream <> '' and w.expected >= -2 and w.count between 1 and 1000 and w.fence >= 0) is not true
  ) then
    field := 'streams'; rule := 'each write has a stream, an expected version, 1 to 1000 messages and a fence';
  elsif (select sum(c) from unnest(counts) c) <> messages then
    field := 'counts'; rule := 'together they are the number of messages';
  else
    field := 'data'; rule := 'one is no message that can be stored';
  end if;
  raise exception 'invalid %: %', field, rule using errcode = 'DB001', column = field, hint = rule;
end
$$;

create function dibs.follow_each(
  streams text[], expected bigint[], counts integer[], fences bigint[], ids uuid[],
  versions_found bigint[], fences_found bigint[], taken uuid[],
  out outcomes text, out versions bigint[], out names text[], out positions bigint[], out writes integer[]
)
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  firsts integer[]; -- for each write, the first to the same stream
  at integer := 0;
  first integer;
  outcome text;
begin
  select array_agg(f.first order by f.n) into firsts
  from (
    select u.n, min(u.n) over (partition by u.name) as first from unnest(streams) with ordinality u (name, n)
  ) f;
  outcomes := '';
  versions := versions_found;
  for w in 1 .. cardinality(streams) loop
    first := firsts[w];
    outcome := case
      when versions_found[first] < -2 or ids[at + 1 : at + counts[w]] && taken then 'a'
      when fences_found[w] is null then 'b'
      when fences[w] <> fences_found[w] then 'f'
      when expected[w] in (versions_found[first], -2) then 'w'
      else 'c'
    end;
    outcomes := outcomes || outcome;
    for i in 1 .. counts[w] loop
      at := at + 1;
      writes[at] := w;
      if outcome = 'w' then
        versions_found[first] := versions_found[first] + 1;
        positions[at] := versions_found[first];
      else
        positions[at] := null;
      end if;
    end loop;
    versions[w] := case outcome when 'f' then fences_found[w] else versions_found[first] end;
  end loop;
  select array_agg(streams[u.write] order by u.n) into names from unnest(writes) with ordinality u (write, n);
end
$$;

create function dibs.append_each(
  streams text[], expected bigint[], counts integer[], fences bigint[],
  ids uuid[], types text[], data json[], metadata json[], notify boolean default false,
  out outcomes text, out versions bigint[], out global_positions bigint[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- as in append_one
as $$
declare
  of_writes constant text := '[1:' || cardinality(streams) || ']';
  of_messages constant text := '[1:' || cardinality(ids) || ']';
  first_category constant text := split_part(streams[1], '-', 1);
  single boolean;          -- whether each write has one message
  free text[];             -- the categories whose lock it has
  fences_of bigint[];      -- of each of them; null for one that was never raised
  erased boolean;          -- whether a stream of one of them was
  versions_found bigint[]; -- of the stream of each write; below -2 if it was erased
  hashes bigint[];         -- of the stream of each write, as its last message has it
  fences_found bigint[];   -- of its category; null if another has that
  taken uuid[];            -- ids that are recorded already, or are there twice
  names text[];            -- the stream of each message
  positions bigint[];      -- of each message; null for what is not added
  writes integer[];        -- of each message; null if each write has one
  known integer[];
begin
  if (
    array_dims(streams) = of_writes and cardinality(streams) <= 1000 and array_dims(expected) = of_writes
    and array_dims(counts) = of_writes and array_dims(fences) = of_writes
    and array_dims(ids) = of_messages and cardinality(ids) <= 1000 and array_dims(types) = of_messages
    and array_dims(data) = of_messages and array_dims(metadata) = of_messages
    and pg_column_size(data) + pg_column_size(metadata) <= 16777216
    and '' <> all (streams) and -2 <= all (expected) and 1 <= all (counts) and 0 <= all (fences)
    and dibs.valid_type(types[1])
  ) is not true
  then
    perform dibs.refuse_invalid_each(streams, expected, counts, fences, ids, types, data, metadata);
  end if;
  single := cardinality(ids) = cardinality(streams) and 1 = all (counts);
  if not single and (select sum(c) from unnest(counts) c) <> cardinality(ids) then
    perform dibs.refuse_invalid_each(streams, expected, counts, fences, ids, types, data, metadata);
  end if;
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    outcomes := repeat('a', cardinality(streams));
    versions := array_fill(-1::bigint, array[cardinality(streams)]);
    return;
  end if;

  if not pg_try_advisory_xact_lock(1684628083, dibs.lock_key(first_category)) then
    perform dibs.wait_for_category(first_category);
  end if;
  if (first_category || '-') collate "C" <= all (streams) and (first_category || '.') collate "C" > all (streams) then
    free := array[first_category];
    select array[f.fence], f.erased into fences_of, erased from dibs.fences f where f.category = first_category;
  else
    select array_agg(k.category) into free
    from (select distinct split_part(s.name, '-', 1) as category from unnest(streams) s (name) offset 0) k
    where pg_try_advisory_xact_lock(1684628083, dibs.lock_key(k.category));
    select array_agg(f.fence order by c.n), bool_or(f.erased) into fences_of, erased
    from unnest(free) with ordinality c (category, n)
    left join lateral (select * from dibs.fences l where l.category = c.category limit 1) f on true;
  end if;

  select array_agg(r.version), array_agg(r.hash), array_agg(r.fence_found), string_agg(r.outcome, ''),
    array_agg(case r.outcome when 'f' then r.fence_found when 'w' then r.version + 1 else r.version end),
    array_agg(case r.outcome when 'w' then r.version + 1 end)
  into versions_found, hashes, fences_found, outcomes, versions, positions
  from (
    select v.*, case
        when v.version < -2 then 'a'
        when v.fence_found is null then 'b'
        when v.fence <> v.fence_found then 'f'
        when v.expected = v.version or v.expected = -2 then 'w'
        else 'c'
      end as outcome
    from (
      select w.*, m.hash, coalesce(
          m.position,
          case when erased then (select -3 - e.version from dibs.erased_streams e where e.digest = dibs.name_digest(w.name)) end,
          -1
        ) as version,
        case when array_position(free, split_part(w.name, '-', 1)) is not null
          then coalesce(fences_of[array_position(free, split_part(w.name, '-', 1))], 0)
        end as fence_found
      from unnest(streams, expected, fences) w (name, expected, fence) -- in its order, as a nested loop leaves it
      left join lateral (
        select l.position, l.group_hash as hash from dibs.messages l where l.stream_name = w.name order by l.position desc limit 1
      ) m on true
      offset 0 -- so that it is looked up once
    ) v
  ) r;
  names := streams;
  if not single or (select count(distinct s.name) from unnest(streams) s (name)) < cardinality(streams) then
    select f.* into outcomes, versions, names, positions, writes
    from dibs.follow_each(streams, expected, counts, fences, ids, versions_found, fences_found, taken) f;
    hashes := null;
  end if;

  while strpos(outcomes, 'w') > 0 loop
    begin
      with added as (
        insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
        select split_part(names[p.n], '-', 1), coalesce(hashes[p.n], dibs.group_hash(names[p.n])), dibs.correlation_category(metadata[p.n]),
          names[p.n], p.position, types[p.n], ids[p.n], data[p.n], metadata[p.n]
        from unnest(positions) with ordinality p (position, n)
        where p.position is not null
          and ids[p.n] <> '00000000-0000-0000-0000-000000000000'
          and (p.position > 0 or dibs.valid_stream_name(names[p.n])) -- one that is there has its name
          and (types[p.n] = types[1] or dibs.valid_type(types[p.n]))
          and dibs.valid_content(data[p.n], metadata[p.n])
        returning m.global_position
      )
      select array_agg(a.global_position) into global_positions from added a;
      exit;
    exception
      when unique_violation then
        if taken is not null then
          raise;
        end if;
        select array_agg(r.id) into taken
        from (
          select u.id, count(*) over (partition by u.id) as times from unnest(ids) u (id)
        ) r
        where r.times > 1 or exists (select from dibs.messages m where m.id = r.id);
        if taken is null then
          raise;
        end if;
        select f.* into outcomes, versions, names, positions, writes
        from dibs.follow_each(streams, expected, counts, fences, ids, versions_found, fences_found, taken) f;
        hashes := null;
    end;
  end loop;
  if coalesce(cardinality(global_positions), 0) <> cardinality(array_remove(positions, null)) then
    perform dibs.refuse_invalid_each(streams, expected, counts, fences, ids, types, data, metadata);
  end if;

  if strpos(outcomes, 'c') > 0 then
    select array_agg(distinct coalesce(writes[u.n], u.n)) into known
    from unnest(ids) with ordinality u (id, n)
    where positions[u.n] is null and exists (select from dibs.messages m where m.id = u.id);
    for i in 1 .. coalesce(cardinality(known), 0) loop
      if substr(outcomes, known[i], 1) = 'c' then
        outcomes := overlay(outcomes placing 'a' from known[i] for 1);
      end if;
    end loop;
    perform dibs.await_standby();
  end if;
  notify := notify and global_positions is not null and dibs.listened();
  if notify and cardinality(free) = 1 then
    perform pg_notify('dibs_messages', 'dibs.' || free[1] || '-' || global_positions[cardinality(global_positions)]);
  elsif notify then
    perform pg_notify('dibs_messages', 'dibs.' || k.category || '-' || (
      select m.global_position from dibs.messages m where m.category = k.category order by m.global_position desc limit 1
    ))
    from unnest(free) k (category);
  end if;
end
$$;

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0004_append.sql', 'a164fa7c6caf6e5b977f8a89c1d1d6161c77c2c22449147998a1f1017c550521');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
