-- Writes that have nothing to do with each other but that they wait for the same categories. The
-- writes that came to a driver while it wrote are written together here: the locks are taken once,
-- the versions are looked up in one statement, and all of it is added in another. So a message
-- costs about a tenth of a call of append.
create or replace function dibs.append_each(
  streams text[], expected bigint[], counts integer[], fences bigint[],
  ids uuid[], types text[], data json[], metadata json[], notify boolean default false, meets boolean[] default null,
  joined boolean[] default null,
  out outcomes text, out versions bigint[], out global_positions bigint[], out times timestamptz[],
  out met_positions bigint[], out met_global_positions bigint[], out met_ids uuid[], out met_times timestamptz[],
  out met_types text[], out met_data json[], out met_metadata json[], out met_at timestamptz
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
  waited text;
  firsts text[] := array[first_category]; -- the categories of the first write
  single boolean;          -- whether each write has one message
  free text[];             -- the categories whose lock it has
  fences_of bigint[];      -- of each of them; null for one that was never raised
  erased boolean;          -- whether a stream of one of them was
  versions_found bigint[]; -- of the stream of each write; below -2 if it was erased
  hashes bigint[];         -- of the stream of each write, as its last message has it
  fences_found bigint[];   -- of its category; null if another has that
  taken uuid[];            -- ids that are recorded already, or are there twice
  names text[];            -- the stream of each message
  positions bigint[];      -- of each message; null for one that is not added
  writes integer[];        -- of each message; null if each write has one
  known integer[];
begin
  if current_setting('dibs.staged', true) = 'true' then
    perform dibs.refuse_staged(streams);
  end if;
  if (
    array_dims(streams) = of_writes and cardinality(streams) <= 1000 and array_dims(expected) = of_writes
    and array_dims(counts) = of_writes and array_dims(fences) = of_writes
    and array_dims(ids) = of_messages and cardinality(ids) <= 1000 and array_dims(types) = of_messages
    and array_dims(data) = of_messages and array_dims(metadata) = of_messages
    and pg_column_size(data) + pg_column_size(metadata) <= 16777216
    and '' <> all (streams) and -2 <= all (expected) and 1 <= all (counts) and 0 <= all (fences)
    and dibs.valid_type(types[1]) and (meets is null or array_dims(meets) = of_writes)
    and (joined is null or array_dims(joined) = of_writes and array_position(joined, null) is null and not joined[1])
  ) is not true
  then
    perform dibs.refuse_invalid_each(streams, expected, counts, fences, ids, types, data, metadata, meets, joined);
  end if;
  single := cardinality(ids) = cardinality(streams) and 1 = all (counts);
  if not single and (select sum(c) from unnest(counts) c) <> cardinality(ids) then
    perform dibs.refuse_invalid_each(streams, expected, counts, fences, ids, types, data, metadata, meets, joined);
  end if;
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    outcomes := repeat('a', cardinality(streams));
    versions := array_fill(-1::bigint, array[cardinality(streams)]);
    return;
  end if;

  -- It waits for the categories of the first write, in the order in which append locks them,
  -- before it has any other: so there is no deadlock. Others are written to if nobody has them.
  if joined[2] then
    select array_agg(k.category order by (k.category || '-') collate "C") into firsts
    from (
      select distinct split_part(s.name, '-', 1) as category
      from unnest(streams[: coalesce(array_position(joined, false, 2) - 1, cardinality(streams))]) s (name)
    ) k;
  end if;
  foreach waited in array firsts loop
    if not pg_try_advisory_xact_lock(1684628083, dibs.lock_key(waited)) then
      perform dibs.wait_for_category(waited);
    end if;
  end loop;
  -- In ASCII the dot comes after the dash: a name between the two begins with the category and a
  -- dash.
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

  -- A statement of its own: its snapshot is younger than the locks. The outcome of each write, as
  -- if it were the only one to its stream, and none of the ids were there. The aggregates take the
  -- rows as they come, so none beside them may ask for an order: from 16 on, PostgreSQL sorts for
  -- such a one, and the others get the sorted rows.
  select array_agg(r.version), array_agg(r.hash), array_agg(r.fence_found), string_agg(r.outcome, ''),
    array_agg(case r.outcome when 'f' then r.fence_found when 'w' then r.version + r.count else r.version end),
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
      from unnest(streams, expected, fences, counts) w (name, expected, fence, count) -- in its order, as a nested loop leaves it
      left join lateral (
        select l.position, l.group_hash as hash from dibs.messages l where l.stream_name = w.name order by l.position desc limit 1
      ) m on true
      offset 0 -- so that it is looked up once
    ) v
  ) r;
  names := streams;
  -- Where each write has a stream of its own, and those of several streams fit, there is nothing to follow.
  if cardinality(streams) > 1 and (
    joined is not null and outcomes <> repeat('w', cardinality(streams))
    or (select count(distinct s.name) from unnest(streams) s (name)) < cardinality(streams)
  ) then
    select f.* into outcomes, versions, names, positions, writes
    from dibs.follow_each(streams, expected, counts, fences, ids, versions_found, fences_found, taken, meets, joined) f;
    hashes := null;
  elsif not single then
    select array_agg(streams[w.n]), array_agg(positions[w.n] + m.n), array_agg(hashes[w.n]), array_agg(w.n::integer)
    into names, positions, hashes, writes
    from unnest(counts) with ordinality w (count, n), generate_series(0, w.count - 1) m (n); -- in their order, as above
  end if;

  -- Of another transaction that has not ended and has one of the ids: it holds up all these categories, and is the
  -- business of one write.
  if cardinality(streams) > 1 then
    perform set_config('lock_timeout', '1s', true);
  end if;
  -- Once, unless one of the ids is recorded already.
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
        returning m.global_position, m.time
      )
      select array_agg(a.global_position), array_agg(a.time) into global_positions, times from added a;
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
        select f.* into outcomes, versions, names, positions, writes
        from dibs.follow_each(streams, expected, counts, fences, ids, versions_found, fences_found, taken, meets, joined) f;
        hashes := null;
      when lock_not_available then
        if cardinality(streams) = 1 then
          raise;
        end if;
        raise exception 'one of the ids belongs to a transaction that has not ended' using errcode = 'object_in_use';
    end;
  end loop;
  if coalesce(cardinality(global_positions), 0) <> cardinality(array_remove(positions, null)) then
    perform dibs.refuse_invalid_each(streams, expected, counts, fences, ids, types, data, metadata, meets, joined);
  end if;

  -- A write that met a version conflict may have been written before, by itself: append tells.
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
  -- A statement behind the one that added: its snapshot has what this group added too.
  if meets is not null and strpos(outcomes, 'c') > 0 then
    met_at := clock_timestamp();
    select array_agg(coalesce(l.position, -1)), array_agg(coalesce(l.global_position, 0)), array_agg(l.id), array_agg(l.time),
      array_agg(l.type), array_agg(l.data), array_agg(l.metadata)
    into met_positions, met_global_positions, met_ids, met_times, met_types, met_data, met_metadata
    from unnest(streams, meets, string_to_array(outcomes, null)) w (name, meet, outcome) -- in its order, as above
    left join lateral dibs.last_met(w.name) l on true
    where w.meet and w.outcome = 'c';
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

comment on function dibs.append_each(text[], bigint[], integer[], bigint[], uuid[], text[], json[], json[], boolean, boolean[], boolean[]) is
'Adds messages to the ends of streams in many writes, each all or nothing by itself, one after the other. A write is to a
stream, at an expected version, with so many of the messages, and a fence; it and notify are as in append.

Answers with a letter for each write: w for written, c for a version conflict, f for fenced, b for one whose category is
busy and none of the first write, which are waited for, and a for one that append has to be asked about: its stream was
erased, or one of its ids is recorded already, or a later write has brought the stream to its version. With it comes the version of
its last message, or that its stream is at, or the fence that there is; and in the end the global positions and times of all
messages that were written, in order. With meets, one for each write, those that conflict and have true are told, in order, the
last message that their stream has in the end, as last_met has it, or the position -1 for none, and the time of that. At REPEATABLE
READ and above each is for append. With joined, one for each write, one that has true is all or nothing together with the
write before it, and all that are one have one letter, but for the a of an id that is recorded; none of them names a stream twice. Raises DB001 for an argument that may not be written, 55P03 after 10 seconds of waiting for
another transaction, 55006 after a second of waiting for one that has one of the ids, and 23505 after a write without the
lock: then nothing of it was written, and each is for append. As with append_one, the client validates the content of the messages.';

grant execute on function dibs.append_each to dibs_writer, dibs_worker, dibs_operator;
