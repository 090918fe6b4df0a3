select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0006_retention.sql', true);

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
perform dibs.begin_migration('0006_retention.sql', '0005_read.sql');

create function dibs.lock_retention(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'messages are removed at READ COMMITTED only, and this transaction is at %', current_setting('transaction_isolation')
      using errcode = 'feature_not_supported';
  end if;
  perform pg_advisory_xact_lock(1684628082, dibs.lock_key(category));
end
$$;

create function dibs.retention_stream(stream text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  category constant text := split_part(stream, '-', 1);
  records constant text := category || case when strpos(category, ':') > 0 then '+' else ':' end || 'retention';
  name text;
begin
  if category ~ '[:+]retention$' then
    return null;
  end if;
  name := records || substr(stream, length(category) + 1);
  if octet_length(name) > 255 or strpos(name, '-') = 0 then
    name := records || '-' || encode(dibs.name_digest(stream), 'hex');
  end if;
  return name;
end
$$;

create function dibs.refuse_invalid_removal(stream text, reason text, max_messages integer, dry_run boolean, id uuid) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  field text;
  rule text;
begin
  if stream is null or stream = '' or stream like '-%' then
    field := 'stream'; rule := 'it is no stream name';
  elsif reason is not null and not dibs.valid_text(reason) then
    field := 'reason'; rule := 'it is 1 to 255 bytes of visible text, without white space at either end';
  elsif max_messages is null or max_messages not between 1 and 100000 then
    field := 'max_messages'; rule := 'it is between 1 and 100000';
  elsif dry_run is null then
    field := 'dry_run'; rule := 'it is true or false';
  elsif id = '00000000-0000-0000-0000-000000000000' then
    field := 'id'; rule := 'it is no message id';
  end if;
  if field is not null then
    raise exception 'invalid %: %', field, rule using errcode = 'DB001', column = field, hint = rule;
  end if;
end
$$;

create function dibs.remove_messages(stream text, below bigint, first bigint default 0) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  removed bigint;
begin
  perform set_config('dibs.retention', 'on', true);
  delete from dibs.messages m 
  where m.stream_name = stream and m.position >= first and m.position < coalesce(below, 9223372036854775807);
  get diagnostics removed = row_count;
  perform set_config('dibs.retention', 'off', true);
  if removed > 0 then
    insert into dibs.removals as r (category, removals) values (split_part(stream, '-', 1), 1)
    on conflict (category) do update set removals = r.removals + 1;
  end if;
  return removed;
end
$$;

create function dibs.kept_tombstone(stream text) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select e.version
  from (select substring(stream from '^[^-]+-([0-9a-f]{64})$') as digest) s
  join dibs.erased_streams e on e.digest = decode(s.digest, 'hex')
  join dibs.messages m on m.stream_name = stream and m.position = e.version and m.type = 'dibs:Tombstone'
$$;

create function dibs.reservation_of(metadata json, named boolean) returns json
language sql immutable parallel safe
return (
  select json_object_agg(p.key, case when p.key = 'reservedKey' and not named then '"(erased)"'::json else p.value end order by p.key)
  from json_each(case when json_typeof(metadata -> 'localProperties') = 'object' then metadata -> 'localProperties' end) p
  where p.key in ('reservedBy', 'reservedDigest', 'reservedFor', 'reservedHandled', 'reservedKey')
    and json_typeof(metadata -> 'localProperties' -> 'reservedDigest') = 'string'
);

create function dibs.trim(
  stream text, keep bigint default null, before timestamptz default null, reason text default null,
  min_age interval default '15 minutes', max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (outcome text, removed bigint, first_position bigint, version bigint, recent boolean, more boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  young timestamptz;
  records text;
  head record;
  found_at record;
  cut bigint; -- all below it may go
  upto bigint; -- all below it goes now
begin
  perform dibs.refuse_invalid_removal(stream, reason, max_messages, dry_run, id);
  if keep is null and before is null or keep < 1 then
    raise exception 'invalid keep: it is at least 1, or a time is given' using errcode = 'DB001', column = 'keep';
  end if;
  if split_part(stream, '-', 1) ~ '[:+]deadLetter$' then
    raise exception 'invalid stream: what is parked in it could be lost; dead letters are deleted, not trimmed'
      using errcode = 'DB001', column = 'stream';
  end if;
  if min_age is null or min_age < '0' or min_age > '100 years' then
    raise exception 'invalid min_age: it is not negative' using errcode = 'DB001', column = 'min_age';
  end if;
  records := dibs.retention_stream(stream);
  if not dry_run then
    perform dibs.lock_retention(split_part(stream, '-', 1));
    perform dibs.await_standby(); -- also where it finds nothing to do
  end if;

  if id is not null then
    select m.stream_name, m.type, m.data into found_at from dibs.messages m where m.id = trim.id;
    if found then
      if found_at.stream_name <> records or found_at.type <> 'dibs:Trimmed' or found_at.data ->> 'stream' <> stream then
        raise exception 'invalid id: it is another message''s' using errcode = 'DB001', column = 'id';
      end if;
      return query select 'trimmed', (found_at.data ->> 'removed')::bigint, (found_at.data ->> 'upTo')::bigint + 1,
        dibs.stream_version(stream), false, true;
      return;
    end if;
  end if;

  select m.position, m.metadata into head from dibs.messages m where m.stream_name = stream order by m.position limit 1;
  if not found then
    return query select 'no_stream', 0::bigint, null::bigint, dibs.stream_version(stream), false, false;
    return;
  end if;
  first_position := head.position;
  select m.position into version from dibs.messages m where m.stream_name = stream order by m.position desc limit 1;

  cut := greatest(head.position, least(
    version - coalesce(keep, 1) + 1,
    dibs.kept_tombstone(stream),
    case when records is null then (
      select m.position from dibs.messages m
      where m.stream_name = stream and m.type in ('dibs:Trimmed', 'dibs:Tombstone') order by m.position desc limit 1
    ) end
  ));
  upto := case when dry_run then cut else least(cut, head.position + max_messages) end;
  young := clock_timestamp() - min_age;
  select m.position, m.time into found_at
  from dibs.messages m
  where m.stream_name = stream and m.position < upto and m.time >= least(young, before)
  order by m.position
  limit 1;
  if found then
    upto := found_at.position;
    recent := before is null or found_at.time < before;
    more := false;
  else
    recent := false;
    more := upto < cut;
  end if;

  removed := upto - head.position;
  if removed = 0 then
    outcome := 'nothing';
  elsif dibs.reservation_of(head.metadata, true) is not null then
    outcome := 'reservation'; removed := 0; more := false;
  else
    outcome := 'trimmed';
    first_position := upto;
    if not dry_run then
      removed := dibs.remove_messages(stream, upto, head.position);
      if records is not null then
        perform dibs.lock_category(split_part(records, '-', 1));
        perform dibs.begin_again(records);
        insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
        values (
          dibs.category(records), dibs.group_hash(records), records, dibs.stream_version(records) + 1, 'dibs:Trimmed', coalesce(id, gen_random_uuid()),
          json_strip_nulls(json_build_object(
            'stream', stream, 'removed', removed, 'from', head.position, 'upTo', upto - 1, 'by', session_user, 'reason', reason))
        );
      end if;
    end if;
  end if;
  return next;
end
$$;

create function dibs.erase_stream(
  stream text, least_version bigint, id uuid, data json, metadata json, out version bigint, out tombstone_stream text
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  first record;
begin
  tombstone_stream := split_part(stream, '-', 1) || '-' || encode(dibs.name_digest(stream), 'hex');
  perform dibs.remove_messages(stream, null);
  perform dibs.begin_again(tombstone_stream);
  version := greatest(least_version, dibs.stream_version(tombstone_stream) + 1);
  select m.position, m.type into first
  from dibs.messages m where m.stream_name = tombstone_stream order by m.position limit 1;
  if first.type = 'dibs:Tombstone' then
    perform dibs.remove_messages(tombstone_stream, first.position + 1);
  end if;
  insert into dibs.messages (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
  values (dibs.category(tombstone_stream), dibs.group_hash(tombstone_stream), dibs.correlation_category(metadata),
    tombstone_stream, version, 'dibs:Tombstone', id, data, metadata);
  insert into dibs.erased_streams as e (digest, version) values (dibs.name_digest(stream), version)
  on conflict (digest) do update set version = excluded.version, erased_at = excluded.erased_at;
  insert into dibs.fences (category, fence, erased) values (split_part(stream, '-', 1), 0, true)
  on conflict (category) do update set erased = true;
end
$$;

create function dibs.delete_stream(
  stream text, expected bigint default null, erase_name boolean default false, reason text default null,
  max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (outcome text, version bigint, messages bigint, tombstone_stream text, more boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  tombstone constant text := 'dibs:Tombstone';
  erased_to constant text := split_part(stream, '-', 1) || '-' || encode(dibs.name_digest(stream), 'hex');
  records text;
  stone record;
  head record;
  tail record;
  first bigint := 0;
  stands boolean; -- the stream ends with a tombstone
  complete boolean; -- all of it goes with this call
  data json;
  metadata json;
begin
  perform dibs.refuse_invalid_removal(stream, reason, max_messages, dry_run, id);
  if expected < 0 then
    raise exception 'invalid expected: it is a position from 0' using errcode = 'DB001', column = 'expected';
  end if;
  erase_name := coalesce(erase_name, false);
  records := case when erase_name then dibs.retention_stream(stream) end;
  tombstone_stream := case when erase_name and dry_run then erased_to else stream end;
  more := false;
  if not dry_run then
    perform dibs.lock_retention(split_part(stream, '-', 1));
    if records is not null then
      perform dibs.lock_retention(split_part(records, '-', 1));
    end if;
    perform dibs.await_standby(); -- also where it was done before
  end if;

  for locked in 0..1 loop
    select m.position, m.type, m.metadata into head
    from dibs.messages m where m.stream_name = stream and m.position >= first order by m.position limit 1;
    select m.position, m.type, m.id, m.data, m.metadata into tail
    from dibs.messages m where m.stream_name = stream order by m.position desc limit 1;
    exit when dry_run or tail.type = tombstone and tail.position - head.position > max_messages;
    first := coalesce(head.position, 0);
    if locked = 0 then
      perform pg_advisory_xact_lock(1684628083, k.key)
      from (
        select distinct dibs.lock_key(split_part(s.name, '-', 1)) as key
        from unnest(array[stream, records]) s (name) where s.name is not null order by 1
      ) k;
    end if;
  end loop;

  if tail.position is null then
    select t.id, t.position, t.data into stone from dibs.erased_tombstone(stream) t;
    if found then
      tombstone_stream := erased_to;
      outcome := case when stone.id = id then 'deleted' else 'already_deleted' end;
      version := stone.position;
      messages := (stone.data ->> 'messages')::bigint;
    else
      outcome := 'no_stream'; version := -1; messages := 0;
    end if;
    return next;
    return;
  end if;

  if id is not null then
    select m.stream_name, m.position, m.data into stone
    from dibs.messages m
    where m.id = delete_stream.id and m.type = tombstone and m.stream_name in (stream, erased_to);
    if found and stone.stream_name = stream then
      expected := stone.position;
    elsif found then
      outcome := 'deleted'; version := stone.position; messages := (stone.data ->> 'messages')::bigint;
      tombstone_stream := erased_to;
      return next;
      return;
    end if;
  end if;

  stands := tail.type = tombstone;
  if not stands and expected < tail.position then
    select m.id, m.data into stone
    from dibs.messages m
    where m.stream_name = stream and m.position = expected and m.type = tombstone;
    if found and (head.position < expected or not erase_name) then
      outcome := case when head.position < expected or stone.id = id then 'deleted' else 'already_deleted' end;
      version := expected;
      messages := (stone.data ->> 'messages')::bigint;
      more := head.position < expected and (erase_name or expected - head.position > max_messages) and not dry_run;
      if not dry_run then
        perform dibs.remove_messages(stream, least(expected, head.position + max_messages), head.position);
      end if;
      return next;
      return;
    end if;
  end if;
  if expected <> tail.position and not (stands and expected = tail.position - 1) then
    outcome := 'version_conflict'; version := tail.position; messages := 0;
    return next;
    return;
  end if;
  if (erase_name or not stands) and dibs.kept_tombstone(stream) is not null then
    raise exception 'invalid stream: it has the tombstone of a stream that was deleted with its name'
      using errcode = 'DB001', column = 'stream';
  end if;
  version := tail.position + case when stands then 0 else 1 end;
  messages := case
    when stands then coalesce((tail.data ->> 'messages')::bigint, 0)
    else tail.position - head.position + case when head.type = tombstone then 0 else 1 end
  end;
  if stands and head.position = tail.position and not erase_name then
    outcome := case when tail.id = id then 'deleted' else 'already_deleted' end;
    return next;
    return;
  end if;

  outcome := 'deleted';
  if dry_run then
    return next;
    return;
  end if;
  if id is not null and id is distinct from tail.id then
    perform from dibs.messages m where m.id = delete_stream.id;
    if found then
      raise exception 'invalid id: it is another message''s' using errcode = 'DB001', column = 'id';
    end if;
  end if;

  complete := version - head.position <= max_messages;
  if complete and exists (select from dibs.messages m where m.stream_name = records) then
    select not d.more into complete from dibs.delete_stream(records, null, true, reason, max_messages) d;
  end if;
  data := json_strip_nulls(json_build_object(
    'messages', messages, 'upTo', version - 1, 'nameErased', erase_name and complete,
    'by', session_user, 'reason', coalesce(reason, case when stands then tail.data ->> 'reason' end)));
  metadata := (
    select json_build_object('localProperties', r.properties)
    from (select dibs.reservation_of(case when stands then tail.metadata else head.metadata end, not (erase_name and complete)) as properties) r
    where r.properties is not null
  );
  if erase_name and complete then
    select e.version, e.tombstone_stream into version, tombstone_stream
    from dibs.erase_stream(stream, version, coalesce(id, case when stands then tail.id end, gen_random_uuid()), data, metadata) e;
  else
    if not stands then
      insert into dibs.messages (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
      values (dibs.category(stream), dibs.group_hash(stream), dibs.correlation_category(metadata),
        stream, version, tombstone, coalesce(id, gen_random_uuid()), data, metadata);
    end if;
    perform dibs.remove_messages(stream, least(version, head.position + max_messages), head.position);
    more := not complete;
  end if;
  return next;
end
$$;

create function dibs.category_streams(category text, after text default null, max_streams integer default 1000)
returns table (stream_name text, first_position bigint, version bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  if category is null or category = '' or strpos(category, '-') > 0 then
    raise exception 'invalid category: it is no category' using errcode = 'DB001', column = 'category';
  end if;
  if max_streams is null or max_streams not between 1 and 10000 then
    raise exception 'invalid max_streams: it is between 1 and 10000' using errcode = 'DB001', column = 'max_streams';
  end if;
  stream_name := after;
  for n in 1..max_streams loop
    select m.stream_name into stream_name
    from dibs.messages m
    where m.stream_name > coalesce(category_streams.stream_name, '')
      and m.stream_name >= category_streams.category and m.stream_name < category_streams.category || '.'
      and (m.stream_name = category_streams.category or m.stream_name >= category_streams.category || '-')
    order by m.stream_name
    limit 1;
    exit when not found;
    select m.position into first_position from dibs.messages m
    where m.stream_name = category_streams.stream_name order by m.position limit 1;
    select m.position into version from dibs.messages m
    where m.stream_name = category_streams.stream_name order by m.position desc limit 1;
    return next;
  end loop;
end
$$;

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0006_retention.sql', '0470f6fe8484fd0cd955a367512a99e4aebb29419bb55f365bc3bd3e2758a3b1');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
