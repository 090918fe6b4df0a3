-- +goose Up
-- +goose StatementBegin
-- How messages are written.
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

-- The class is "dibs" in ASCII, so that pg_locks shows whose locks they are and
-- nobody else's are in their way. Two categories, or one category of two schemas,
-- that hash alike wait for each other now and then, and nothing worse.
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

comment on function dibs.lock_category(text) is
'Waits for every transaction that has written to the category, and holds off others, to the end of this one.
Whoever adds a message to the category takes this lock first, and looks nothing up and draws no position before that:
so positions become visible in order, and what a later statement sees is all there is. To lock several categories, take
them in the order of dibs.lock_key.';

-- Whoever has lost the answer to a write asks find_messages what became of it. The
-- write may not even have begun then: it may be on its way still. So that "it was not
-- written" is true for ever, the answer raises the category's fence, and a call of
-- append that was sent before, with the fence as it was, is turned away.
create table dibs.fences (
  category text collate "C" primary key,
  fence bigint not null
);

comment on table dibs.fences is 'How often find_messages did not find something in a category; no row for never.';

-- Raises DB001 for a call of append that Go's validators would refuse.
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

comment on function dibs.refuse_invalid(text[], bigint[], integer[], uuid[], text[], json[], json[]) is
'Raises DB001, with the parameter as the column, if append may not be called with these arguments.';

-- A writer whose wait for a standby was cancelled has written all the same, and here
-- only. Who answers with what it has found must not vouch for that: with a record of
-- its own in the log, its transaction waits for all that came before.
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

comment on function dibs.await_standby() is
'Has the commit of this transaction wait for the standby, if there is one to wait for, although it has written nothing.';

-- What to answer if the ids are recorded already: a duplicate for each stream, or
-- the first conflict. No row if none is.
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

  -- What was there just now may have been trimmed since: then it is new.
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

comment on function dibs.find_recorded(text[], bigint[], integer[], uuid[], text[], json[], json[]) is
'What append answers if some of the ids are recorded already; no row if none is.';

-- A transaction at REPEATABLE READ or above does not see what was committed after
-- it began, but a unique index does. So what it cannot look up it finds out by
-- trying: it adds a message that would be in the way, and takes it back.
create function dibs.taken(stream text, version bigint, id uuid) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into dibs.messages (stream_name, position, type, id) values (stream, version, 'probe', id);
  raise exception using errcode = 'DB000';
exception
  when sqlstate 'DB000' then
    return false;
  when unique_violation then
    return true;
end
$$;

comment on function dibs.taken(text, bigint, uuid) is
'Whether a message has this position or this id, also one that the transaction is too old to see.';

-- Whoever adds to a stream that is empty calls this first, under the category's lock.
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
  -- The other one stays where it is, for the readers that are behind it. Were it gone,
  -- the stream would go on from here all the same.
  insert into dibs.messages (stream_name, position, type, id, data, metadata)
  select stream, version, 'dibs:Tombstone', gen_random_uuid(), coalesce(t.data, '{"nameErased":true}'), t.metadata
  from (select) s
  left join dibs.messages t
    on t.stream_name = split_part(stream, '-', 1) || '-' || encode(sought, 'hex') and t.position = version;
  delete from dibs.erased_streams e where e.digest = sought;
  return version;
end
$$;

comment on function dibs.begin_again(text) is
'Puts the tombstone of a stream that was erased, and is empty still, back under its name, and returns the version; null
for any other stream.';

create function dibs.append(
  streams text[], expected bigint[], counts integer[],
  ids uuid[], types text[], data json[], metadata json[],
  fences bigint[] default null,
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
  -- Whether each statement sees what was committed before it.
  current constant boolean := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');

  single constant boolean := cardinality(streams) = 1 and cardinality(ids) = 1 and counts[1] = 1;
  at record;
  fence bigint;
  violated boolean;
begin
  -- One message, as most writes are, goes straight through: checked without
  -- sets, and added without a subtransaction. What does not fit goes on below,
  -- where it is found out why.
  if single and current
    and cardinality(expected) = 1 and expected[1] >= -2
    and cardinality(types) = 1 and cardinality(data) = 1 and cardinality(metadata) = 1
    and ids[1] <> '00000000-0000-0000-0000-000000000000'
    and dibs.valid_stream_name(streams[1]) and dibs.valid_type(types[1]) and dibs.valid_data(data[1])
    and (metadata[1] is null or dibs.valid_metadata(metadata[1]))
    and octet_length(data[1]::text) + coalesce(octet_length(metadata[1]::text), 0) <= 983040
  then
    perform pg_advisory_xact_lock(1684628083, dibs.lock_key(split_part(streams[1], '-', 1)));

    -- A stream that is empty may have been erased. Its version is then a number
    -- below -2, and it goes on below.
    select
      coalesce(
        (select m.position from dibs.messages m where m.stream_name = streams[1] order by m.position desc limit 1),
        (select -3 - e.version from dibs.erased_streams e where e.digest = dibs.name_digest(streams[1])),
        -1
      ),
      coalesce((select f.fence from dibs.fences f where f.category = split_part(streams[1], '-', 1)), 0)
    into version, fence;
    if fences[1] is distinct from fence and fences is not null or version < -2 then
      null;
    elsif expected[1] = version or expected[1] = -2 then
      insert into dibs.messages as m (stream_name, position, type, id, data, metadata)
      values (streams[1], version + 1, types[1], ids[1], data[1], metadata[1])
      on conflict do nothing
      returning 'written', m.stream_name, m.position, m.global_position into outcome, stream, version, global_position;
      if found then
        return next;
        return;
      end if;
    end if;
  else
    perform dibs.refuse_invalid(streams, expected, counts, ids, types, data, metadata);

    -- A statement of its own: the snapshots of those that follow are younger than
    -- the locks.
    perform pg_advisory_xact_lock(1684628083, k.key)
    from (select distinct dibs.lock_key(split_part(s.name, '-', 1)) as key from unnest(streams) s (name) order by 1) k;
  end if;

  if not current then
    -- 40001 if something was removed since this transaction began: what it sees is
    -- not enough to go by then.
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
      -- 40001 for a fence that was raised since this transaction began.
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

  -- Once, unless there are writers that do not take the lock, or that used one of
  -- the ids in another category just now: then what was in the way is seen in the
  -- next round.
  loop
    violated := false;

    -- The first stream that is not at its version.
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
      -- Nothing will be added to a stream that is only checked, so no index would
      -- tell.
      select s.name, s.expected + 1 as version into at
      from unnest(streams, expected, counts) with ordinality s (name, expected, count, n)
      where s.count = 0 and dibs.taken(s.name, s.expected + 1, gen_random_uuid())
      order by s.n
      limit 1;
    end if;

    if not found then
      begin
        -- A stream that was erased and is written to again begins with its tombstone.
        if exists (select from dibs.erased_streams) then
          perform dibs.begin_again(s.name) from unnest(streams, counts) s (name, count) where s.count > 0;
        end if;

        return query
        with added as (
          insert into dibs.messages as m (stream_name, position, type, id, data, metadata)
          select s.name, s.version + r.n - (s.upto - s.count), r.type, r.id, r.data, r.metadata
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
        return;
      exception
        when unique_violation then
          violated := true;
      end;
    end if;

    -- It could not be written: because it was before, or else for the version.
    return query select r.* from dibs.find_recorded(streams, expected, counts, ids, types, data, metadata) r;
    if found then
      perform dibs.await_standby();
      return;
    end if;
    if not violated then
      perform dibs.await_standby();
      return query select 'version_conflict', at.name, at.version, null::bigint, null::uuid;
      return;
    end if;
    exit when not current;
  end loop;

  -- This transaction is too old to see what was in its way. A message that has one
  -- of the ids may be this very one, which a younger transaction can tell.
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

comment on function dibs.append(text[], bigint[], integer[], uuid[], text[], json[], json[], bigint[]) is
'Adds messages to the ends of streams: all of it or nothing. Each stream is named once, with the version it is expected to
be at (the position of its last message, -1 for no stream, -2 for any version) and how many of the messages are its; the
messages come in the order of the streams. No message only checks the version. With fences, one for each stream, a client
that may ask find_messages later says where it believes the fence of the stream''s category to be: 0 until it is told.

Answers with rows, never with an exception, so that the transaction goes on:
  written           for each stream: the position and the global position of its last message
  duplicate         for each stream: the same, of when the messages were written before, with the same ids and content
  id_conflict       once: the stream, position and id of a message that has one of the ids, with other content or elsewhere
  version_conflict  once: the first stream that is not at its version, and the version it is at (at REPEATABLE READ and
                    above, the least that it can be)
  fenced            once: the first stream whose category''s fence is elsewhere, and, as its version, where; to be tried again with it
Raises DB001 for what may not be written, 55P03 after 10 seconds of waiting for another transaction, and, at REPEATABLE
READ and above only, 40001 for messages of any version, or with ids that are taken, where the transaction cannot see why,
and for a category from which messages were removed since the transaction began.

A stream that was deleted goes on after its tombstone, also one that was erased with its name: its version is the
tombstone''s, so it is never first written again. An id whose message was removed is not known any more.';

-- Raises DB001 for a call of append_each that is not in order, or has something in it
-- that append would refuse.
create function dibs.refuse_invalid_each(
  streams text[], slots integer[], expected bigint[], counts integer[], fences bigint[],
  ids uuid[], types text[], data json[], metadata json[]
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  writes constant integer := coalesce(cardinality(slots), 0);
  messages constant integer := coalesce(cardinality(ids), 0);
  named constant integer := coalesce(cardinality(streams), 0);
  field text;
  rule text;
begin
  if writes not between 1 and 1000 then
    field := 'slots'; rule := 'there are 1 to 1000 writes';
  elsif messages not between 1 and 1000 then
    field := 'ids'; rule := 'there are 1 to 1000 messages';
  elsif cardinality(expected) is distinct from writes then
    field := 'expected'; rule := 'there is one expected version for each write';
  elsif cardinality(counts) is distinct from writes then
    field := 'counts'; rule := 'there is one count for each write';
  elsif cardinality(fences) is distinct from writes then
    field := 'fences'; rule := 'there is one for each write';
  elsif cardinality(types) is distinct from messages then
    field := 'types'; rule := 'there is one type for each message';
  elsif cardinality(data) is distinct from messages then
    field := 'data'; rule := 'there is one for each message';
  elsif cardinality(metadata) is distinct from messages then
    field := 'metadata'; rule := 'there is one, or null, for each message';
  elsif exists (
    select from (values (array_lower(streams, 1)), (array_lower(slots, 1)), (array_lower(expected, 1)), (array_lower(counts, 1)),
      (array_lower(fences, 1)), (array_lower(ids, 1)), (array_lower(types, 1)), (array_lower(data, 1)), (array_lower(metadata, 1))) a (first)
    where a.first <> 1
  ) then
    field := 'slots'; rule := 'arrays begin at 1';
  elsif named > writes or (select count(distinct s) from unnest(streams) s) <> named then
    field := 'streams'; rule := 'each is named once, and written to';
  elsif exists (
    select from unnest(slots, expected, counts, fences) w (slot, expected, count, fence)
    where (w.slot between 1 and named and w.expected >= -2 and w.count between 1 and 1000 and w.fence >= 0) is not true
  ) then
    field := 'slots'; rule := 'each write has a stream, an expected version, 1 to 1000 messages and a fence';
  elsif (select sum(c) from unnest(counts) c) <> messages then
    field := 'counts'; rule := 'together they are the number of messages';
  elsif exists (select from unnest(streams) s where not dibs.valid_stream_name(s)) then
    field := 'streams'; rule := 'one is no stream name';
  elsif exists (
    select
    from (
      select v.*, case when v.good then v.metadata::jsonb end as fields
      from (
        select u.*, u.metadata is null or dibs.valid_data(u.metadata) as good
        from unnest(ids, types, data, metadata) u (id, type, data, metadata)
        offset 0 -- so that it is looked at once
      ) v
      offset 0
    ) r
    where not (
      r.id is not null and r.id <> '00000000-0000-0000-0000-000000000000'
      and dibs.valid_type(r.type)
      and dibs.valid_data(r.data)
      and r.good
      and dibs.valid_references(r.fields)
      and octet_length(r.data::text) + coalesce(octet_length(r.metadata::text), 0) <= 983040
    )
  ) then
    field := 'data'; rule := 'one is no message that can be stored';
  elsif (
    select sum(octet_length(r.data::text) + coalesce(octet_length(r.metadata::text), 0)) from unnest(data, metadata) r (data, metadata)
  ) > 16777216 then
    field := 'data'; rule := 'all data and metadata together are at most 16777216 bytes';
  end if;

  if field is not null then
    raise exception 'invalid %: %', field, rule using errcode = 'DB001', column = field, hint = rule;
  end if;
end
$$;

comment on function dibs.refuse_invalid_each(text[], integer[], bigint[], integer[], bigint[], uuid[], text[], json[], json[]) is
'Raises DB001, with the parameter as the column, if append_each may not be called with these arguments.';

-- Writes that have nothing to do with each other but that they wait for the same
-- categories. What has come to a driver while it wrote is here written together: the
-- locks are taken once, the versions are looked up in one statement, and all of it is
-- added in another. So a message costs about a fifth of what a call of append does.
create function dibs.append_each(
  streams text[], slots integer[], expected bigint[], counts integer[], fences bigint[],
  ids uuid[], types text[], data json[], metadata json[],
  out outcomes text, out versions bigint[], out global_positions bigint[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- as in append
set enable_bitmapscan = off
as $$
declare
  writes constant integer := cardinality(slots);
  free text[];      -- the categories whose lock it has
  versions_found bigint[]; -- of each stream; below -2 if it was erased
  fences_found bigint[];   -- of each stream's category; -1 if another has that
  taken uuid[];     -- ids that are recorded already, or are there twice
  current bigint[]; -- the version of each stream after the writes so far
  results text[];
  positions bigint[]; -- of each message; null for what is not added
  names text[];       -- the stream of each message; null likewise
  at integer;
  slot integer;
begin
  perform dibs.refuse_invalid_each(streams, slots, expected, counts, fences, ids, types, data, metadata);
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    outcomes := repeat('a', writes);
    versions := array_fill(-1::bigint, array[writes]);
    return;
  end if;

  -- It waits for one category. Others are written to if nobody has them: so nobody
  -- waits for a category that is not theirs, and there is no deadlock.
  perform pg_advisory_xact_lock(1684628083, dibs.lock_key(split_part(streams[1], '-', 1)));
  select array_agg(k.category) into free
  from (select distinct split_part(s.name, '-', 1) as category from unnest(streams) s (name) offset 0) k
  where pg_try_advisory_xact_lock(1684628083, dibs.lock_key(k.category));

  -- A statement of its own: its snapshot is younger than the locks.
  select array_agg(coalesce(v.position, e.version, -1) order by s.n),
    array_agg(case when split_part(s.name, '-', 1) = any (free) then coalesce(f.fence, 0) else -1 end order by s.n)
  into versions_found, fences_found
  from unnest(streams) with ordinality s (name, n)
  left join lateral (
    select m.position from dibs.messages m where m.stream_name = s.name order by m.position desc limit 1
  ) v on true
  left join lateral (
    select -3 - l.version as version from dibs.erased_streams l where v.position is null and l.digest = dibs.name_digest(s.name) limit 1
  ) e on true
  left join lateral (
    select l.fence from dibs.fences l where l.category = split_part(s.name, '-', 1) limit 1
  ) f on true;

  -- Once, unless one of the ids is recorded already. The writes that have it are left
  -- to append then.
  loop
    current := versions_found;
    at := 0;
    positions := array_fill(null::bigint, array[cardinality(ids)]);
    names := array_fill(null::text, array[cardinality(ids)]);
    for w in 1 .. writes loop
      slot := slots[w];
      versions[w] := current[slot];
      if taken is not null and ids[at + 1 : at + counts[w]] && taken or current[slot] < -2 then
        results[w] := 'a';
        at := at + counts[w];
      elsif fences_found[slot] = -1 then
        results[w] := 'b';
        at := at + counts[w];
      elsif fences[w] <> fences_found[slot] then
        results[w] := 'f';
        versions[w] := fences_found[slot];
        at := at + counts[w];
      elsif expected[w] = current[slot] or expected[w] = -2 then
        results[w] := 'w';
        for i in 1 .. counts[w] loop
          at := at + 1;
          positions[at] := current[slot] + i;
          names[at] := streams[slot];
        end loop;
        current[slot] := current[slot] + counts[w];
        versions[w] := current[slot];
      else
        results[w] := 'c';
        at := at + counts[w];
      end if;
    end loop;

    begin
      with added as (
        insert into dibs.messages as m (stream_name, position, type, id, data, metadata)
        select r.name, r.position, r.type, r.id, r.data, r.metadata
        from unnest(names, positions, ids, types, data, metadata) r (name, position, id, type, data, metadata)
        where r.position is not null
        returning m.global_position
      )
      select array_agg(a.global_position) into global_positions from added a;
      exit;
    exception
      when unique_violation then
        -- Another id, or another position for it, in each round.
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
    end;
  end loop;

  -- What met a version conflict may have been written before, by itself: append tells.
  if 'c' = any (results) then
    at := 0;
    for w in 1 .. writes loop
      if results[w] = 'c' and exists (
        select from unnest(ids[at + 1 : at + counts[w]]) r (id)
        cross join lateral (select from dibs.messages m where m.id = r.id limit 1) m
      ) then
        results[w] := 'a';
      end if;
      at := at + counts[w];
    end loop;
    perform dibs.await_standby();
  end if;
  outcomes := array_to_string(results, '');
end
$$;

comment on function dibs.append_each(text[], integer[], bigint[], integer[], bigint[], uuid[], text[], json[], json[]) is
'Adds messages to the ends of streams in many writes, each all or nothing by itself, one after the other. A write is to the
stream at its slot in streams (from 1), at an expected version, with so many of the messages, and a fence, all as in append.

Answers with a letter for each write: w for written, c for a version conflict, f for fenced, b for one whose category is
busy and not that of the first stream, which is waited for, and a for one that append has to be asked about: its stream was
erased, or one of its ids is recorded already. With it comes the version of its last
message, or that its stream is at, or the fence that there is; and in the end the global positions of all messages that
were written, in order. At REPEATABLE READ and above each is for append. Raises DB001 for what may not be written, 55P03 after 10 seconds of waiting for another transaction,
and 23505 where somebody wrote without the lock: then nothing of it was written, and each is for append.';

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0004_append.sql', '673d1cdfd5f73ab839516a5d840b6b463aeb6155ccb52d8fe0504381424e9c8f');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
-- +goose StatementEnd
