-- append for several messages to one stream, as most writes of a saga are, at half the price: as append_one, and with sets only
-- where the messages are. What does not fit is left to append, which finds out why.
create or replace function dibs.append_several(
  stream text, expected bigint, ids uuid[], types text[], data json[], metadata json[],
  fence bigint default null, notify boolean default false, meet boolean default false,
  out outcome text, out version bigint, out global_position bigint, out id uuid, out "time" timestamptz,
  out met_type text, out met_data json, out met_metadata json, out met_at timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- as in append_one
as $$
declare
  stream_category constant text := split_part(stream, '-', 1);
  fence_found bigint; -- -1 if a stream of the category was erased, perhaps this one
  hash bigint;        -- of the stream, as its last message has it
  fits boolean;       -- each message may be stored
begin
  if current_setting('dibs.staged', true) = 'true' then
    perform dibs.refuse_staged(array[stream]);
  end if;
  if stream <> '' and expected >= -2 and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
    and array_dims(ids) = '[1:' || cardinality(ids) || ']' and cardinality(ids) <= 1000
    and array_dims(types) = array_dims(ids) and array_dims(data) = array_dims(ids) and array_dims(metadata) = array_dims(ids)
    and pg_column_size(data) + pg_column_size(metadata) <= 16777216
  then
    if not pg_try_advisory_xact_lock(1684628083, dibs.lock_key(stream_category)) then
      perform dibs.wait_for_category(stream_category);
    end if;

    -- A statement of its own: its snapshot is younger than the lock.
    select coalesce(l.position, -1), l.group_hash,
      coalesce((select case when not f.erased then f.fence else -1 end from dibs.fences f where f.category = stream_category), 0),
      (
        select bool_and(u.id <> '00000000-0000-0000-0000-000000000000' and dibs.valid_type(u.type) and dibs.valid_content(u.data, u.metadata))
        from unnest(ids, types, data, metadata) u (id, type, data, metadata)
      )
    into version, hash, fence_found, fits
    from (select) one
    left join lateral (
      select m.position, m.group_hash from dibs.messages m where m.stream_name = append_several.stream order by m.position desc limit 1
    ) l on true;

    if fits and fence_found >= 0 and (fence <> fence_found) is not true and (expected = version or expected = -2)
      and (version >= 0 or dibs.valid_stream_name(stream))
    then
      with added as (
        insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
        select stream_category, coalesce(hash, dibs.group_hash(append_several.stream)), dibs.correlation_category(u.metadata),
          append_several.stream, append_several.version + u.n, u.type, u.id, u.data, u.metadata
        from unnest(ids, types, append_several.data, append_several.metadata) with ordinality u (id, type, data, metadata, n)
        returning m.global_position, m.time
      )
      select max(a.global_position), (array_agg(a.time))[cardinality(ids)] into global_position, time from added a;
      version := version + cardinality(ids);
      if notify and dibs.listened() then
        perform pg_notify('dibs_messages', 'dibs.' || stream_category || '-' || global_position);
      end if;
      outcome := 'written';
      return;
    end if;
  end if;

  select a.outcome, a.version, a.global_position, a.id, a.time, a.met_type, a.met_data, a.met_metadata, a.met_at
  into outcome, version, global_position, id, time, met_type, met_data, met_metadata, met_at
  from dibs.append(array[stream], array[expected], array[cardinality(ids)], ids, types, data, metadata,
    case when fence is not null then array[fence] end, notify, meet) a;
end
$$;

comment on function dibs.append_several(text, bigint, uuid[], text[], json[], json[], bigint, boolean, boolean) is
'Adds messages to the end of one stream: append for that, and answers as it does, with the global position and the time of the
last message. A version conflict is of the stream; id is the message that an id conflict is with. Raises 23505 where append would
find out by trying that an id is recorded already: append tells the outcome then. As with append_one, the client validates the
content of the messages.';

grant execute on function dibs.append_several to dibs_writer, dibs_worker, dibs_operator;
