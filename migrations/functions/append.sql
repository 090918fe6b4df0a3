create or replace function dibs.append(
  streams text[], expected bigint[], counts integer[],
  ids uuid[], types text[], data json[], metadata json[],
  fences bigint[] default null, notify boolean default false, meet boolean default false, past jsonb default null,
  after uuid[] default null, shared boolean default false,
  out outcome text, out stream text, out version bigint, out global_position bigint, out id uuid, out "time" timestamptz,
  out met_type text, out met_data json, out met_metadata json, out met_at timestamptz
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- a plan made for an empty table is kept when it grows
set enable_bitmapscan = off
as $$
declare
  -- Whether each statement sees the commits before it.
  current constant boolean := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');

  one_category constant text := split_part(streams[1], '-', 1);
  fits boolean;

  at record;
  violated text; -- the constraint that was in the way, if one was
begin
  if current_setting('dibs.staged', true) = 'true' then
    perform dibs.refuse_staged(streams);
  end if;
  -- One message at a version, as most writes are: at a third of the price, without sets. What does not
  -- fit goes on below, which finds out why.
  if current and counts = array[1] and array_dims(streams) = '[1:1]' and array_dims(ids) = '[1:1]' and array_dims(expected) = '[1:1]'
    and array_dims(types) = '[1:1]' and array_dims(data) = '[1:1]' and array_dims(metadata) = '[1:1]' and expected[1] >= -1
    and (fences is null or array_dims(fences) = '[1:1]') and (after is null or array_dims(after) = '[1:1]' and (after[1] is null or expected[1] >= 0))
    and (past is null or jsonb_typeof(past) = 'array' and jsonb_array_length(past) = 1 and (
      past -> 0 = 'null' or jsonb_typeof(past -> 0) = 'array' and jsonb_array_length(past -> 0) between 1 and 100
      and not jsonb_path_exists(past -> 0, 'strict $[*] ? (@.type() != "string")')
    ))
    and ids[1] <> '00000000-0000-0000-0000-000000000000' and dibs.valid_stream_name(streams[1]) and dibs.valid_type(types[1])
    and dibs.valid_data(data[1]) and dibs.valid_metadata(metadata[1])
    and octet_length(data[1]::text) + coalesce(octet_length(metadata[1]::text), 0) <= 983040
  then
    if shared then
      perform dibs.lock_shared(streams);
    else
      perform pg_advisory_xact_lock(1684628083, dibs.lock_key(one_category));
    end if;
    -- A statement of its own: its snapshot is younger than the lock. A stream of a category of which one
    -- was erased may be that one.
    select m.position = expected[1] and m.id is not distinct from coalesce(after[1], m.id)
      and not f.erased and (fences is null or f.fence = fences[1])
    into fits
    from (
      (select l.position, l.id from dibs.messages l where l.stream_name = streams[1] order by l.position desc limit 1)
      union all select -1, null
      limit 1
    ) m, (
      (select l.fence, l.erased from dibs.fences l where l.category = one_category)
      union all select 0, false
      limit 1
    ) f;
    if fits then
      insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
      values (one_category, dibs.group_hash(streams[1]), dibs.correlation_category(metadata[1]),
        streams[1], expected[1] + 1, types[1], ids[1], data[1], metadata[1])
      on conflict do nothing
      returning m.stream_name, m.position, m.global_position, m.time into stream, version, global_position, time;
      if found then
        if notify and dibs.listened() then
          perform pg_notify('dibs_messages', 'dibs.' || one_category || '-' || global_position);
        end if;
        outcome := 'written';
        return next;
        return;
      end if;
    end if;
  end if;

  perform dibs.refuse_invalid(streams, expected, counts, ids, types, data, metadata, past, after);

  -- A statement of its own: the snapshots of those that follow are younger than
  -- the locks.
  if shared and current then
    perform dibs.lock_shared(streams);
  else
    perform pg_advisory_xact_lock(1684628083, dibs.lock_key(k.category))
    from (select split_part(s.name, '-', 1) as category from unnest(streams) s (name) order by s.name collate "C" offset 0) k;
  end if;

  if not current then
    -- 40001 if a message was removed since this transaction began: its snapshot is too old then.
    insert into dibs.removals (category, removals)
    select distinct split_part(s.name, '-', 1), 0 from unnest(streams) s (name) order by 1
    on conflict do nothing;
    perform from dibs.removals r
    where r.category in (select split_part(s.name, '-', 1) from unnest(streams) s (name))
    for share;
  end if;

  if fences is not null then
    if cardinality(fences) <> cardinality(streams) then
      raise exception 'invalid fences: must have one value for each stream' using errcode = 'DB001', column = 'fences';
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
      outcome := 'fenced';
      stream := at.name;
      version := at.fence;
      return next;
      return;
    end if;
  end if;

  -- Once, unless there are writers that do not take the lock, or that used one of the ids in
  -- another category just now: then the next round sees the row that was in the way.
  loop
    violated := null;

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
      and (s.expected >= -3 or s.expected < -4 and m.position >= -1099511627776 - s.expected or not exists (
        select from (
          select l.type from dibs.messages l where l.stream_name = s.name order by l.position desc limit 1
        ) l where l.type <> 'dibs:Tombstone'
      ))
      and (past is null or not (
        select count(*) = m.position - s.expected -- all are there, and may have come
        from dibs.messages f
        where f.stream_name = s.name and f.position > s.expected and (past -> (s.n - 1)::integer) ? f.type
      ))
      or after[s.n] is not null and not exists (
        select from dibs.messages b where b.stream_name = s.name and b.position = s.expected and b.id = after[s.n]
      )
    order by s.n
    limit 1;

    if not found and not current then
      -- Nothing will be added to a stream that is only checked, so no index would
      -- tell. Whether a message that this transaction is too old to see is of a type that may have
      -- come, a younger one can tell.
      select s.name, s.expected + 1 as version, s.passes into at
      from (
        select u.*, past -> (u.n - 1)::integer <> 'null' as passes
        from unnest(streams, expected, counts) with ordinality u (name, expected, count, n)
      ) s
      where s.count = 0 and dibs.taken(s.name, case when s.passes then dibs.stream_version(s.name) else s.expected end + 1, gen_random_uuid())
      order by s.passes nulls first, s.n
      limit 1;
      if found and at.passes then
        raise exception 'could not serialize access due to messages added since the transaction began'
          using errcode = 'serialization_failure';
      end if;
    end if;

    if not found then
      begin
        -- A stream that was erased and is written to again begins with its tombstone.
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
          returning m.stream_name, m.position, m.global_position, m.time
        )
        select 'written', s.name,
          coalesce(
            max(a.position),
            case when past is not null or s.expected <= -4 then (
              select m.position from dibs.messages m where m.stream_name = s.name order by m.position desc limit 1
            ) end,
            s.expected
          ),
          coalesce(max(a.global_position), 0), null::uuid, (array_agg(a.time order by a.position desc))[1],
          null::text, null::json, null::json, null::timestamptz
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
          -- Any other cause is there in every round: an index or a trigger that is not of Dibs, or
          -- a message with the same global position, if the sequence is behind. Another round
          -- would draw one that readers may have passed. An index that is made anew is there twice
          -- meanwhile, once by another name.
          get stacked diagnostics violated = constraint_name;
          if regexp_replace(violated, '_cc(new|old)[0-9]*$', '') not in ('messages_id', 'messages_stream')
            and not exists (select from dibs.find_recorded(streams, expected, counts, ids, types, data, metadata))
          then
            raise;
          end if;
      end;
    end if;

    -- It could not be written: because it was before, or else for the version.
    return query
    select r.outcome, r.stream, r.version, r.global_position, r.id, r.time, null::text, null::json, null::json, null::timestamptz
    from dibs.find_recorded(streams, expected, counts, ids, types, data, metadata) r;
    if found then
      perform dibs.await_standby();
      return;
    end if;
    if violated is null then
      perform dibs.await_standby();
      if meet and current then
        met_at := clock_timestamp();
        return query
        select 'met', s.name, coalesce(l.position, dibs.stream_version(s.name)), coalesce(l.global_position, t.global_position),
          coalesce(l.id, t.id), coalesce(l.time, t.time), coalesce(l.type, t.type),
          case when l.id is null then t.data else l.data end, case when l.id is null then t.metadata else l.metadata end, met_at
        from unnest(streams) with ordinality s (name, n)
        left join lateral dibs.last_met(s.name) l on true
        left join lateral (select e.* from dibs.erased_tombstone(s.name) e where l.id is null) t on true
        order by s.n;
        return;
      end if;
      outcome := 'version_conflict';
      stream := at.name;
      version := at.version;
      return next;
      return;
    end if;
    exit when not current;
  end loop;

  -- This transaction is too old to see the row that was in its way. A message that has one of the
  -- ids may be this very one, which a younger transaction can tell.
  perform from unnest(ids) r (id) where dibs.taken('', 9223372036854775807, r.id) limit 1;
  if not found then
    select s.name, s.expected + 1 as version into at
    from unnest(streams, expected) with ordinality s (name, expected, n)
    where s.expected <> -2 and (past -> (s.n - 1)::integer <> 'null') is not true
      and dibs.taken(s.name, s.expected + 1, gen_random_uuid())
    order by s.n
    limit 1;
    if found then
      outcome := 'version_conflict';
      stream := at.name;
      version := at.version;
      return next;
      return;
    end if;
  end if;
  raise exception 'could not serialize access due to messages added since the transaction began'
    using errcode = 'serialization_failure';
end
$$;

comment on function dibs.append(text[], bigint[], integer[], uuid[], text[], json[], json[], bigint[], boolean, boolean, jsonb, uuid[], boolean) is
'Adds messages to the ends of streams: all of it or nothing. Each stream is named once, with the version it is expected to be at
(the position of its last message, -1 for no stream, -2 for any version, -4 for a stream that has
a message and was not deleted, -1099511627776 - n for one of these that is below position n) and how many of the messages are its; the messages come
in the order of the streams. No message only checks the version. With fences, one for each stream, a client that may ask
find_messages later says where it believes the fence of the stream''s category to be: 0 until it is told. With notify, a session
that has called dibs.listen hears on the channel dibs_messages of each category that was written to, as ''dibs.'', its name, a
dash and the global position of its last message.

With past, a list of types or null for each stream, messages of these types may have come since the expected version: if all that
came are there and of these types, the messages go behind them. With after, an id or null for each stream, the message at the
expected version has this id, or it is a version conflict, whose version may be the expected one. With meet, a write that is not at its version is answered, at READ
COMMITTED, with the last messages of all its streams and the time at which that was so.

With shared, for a transaction that goes on: at READ COMMITTED it does not keep others that write so from the categories, but
from its streams, until it ends. Readers wait for it. The first such write of a category keeps all others from it.

Answers with rows, never with an exception, so that the transaction goes on:
  written           for each stream: the position, the global position and the time of its last message; of one that was only
                    checked, its version
  duplicate         for each stream: the same, of when the messages were written before, with the same ids and content
  id_conflict       once: the stream, position and id of a message that has one of the ids, with other content or elsewhere
  version_conflict  once: the first stream that is not at its version, and the version it is at (at REPEATABLE READ and
                    above, the least that it can be)
  met               with meet, in place of version_conflict, for each stream: its version, and its last message; data and metadata of
                    more than 16 KiB are null, to be read by the position
  fenced            once: the first stream whose category''s fence is elsewhere, and, as its version, where; to be tried again with it
Raises DB001 for an argument that may not be written, 55P03 after 10 seconds of waiting for another transaction, 23505 for a
row that an index or a trigger that is not of Dibs refuses, or for a sequence that is behind, and, at REPEATABLE READ and
above only, 40001 for messages of any version, or with ids that are taken, where the transaction cannot see why, and for a
category from which messages were removed since the transaction began.

A stream that was deleted goes on after its tombstone, also one that was erased with its name: its version is the
tombstone''s, so it is never first written again. An id whose message was removed is not known any more.';

grant execute on function dibs.append to dibs_writer, dibs_worker, dibs_operator;
