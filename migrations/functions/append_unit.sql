-- Ends a transaction of the library's, which has run the caller's own SQL: COMMIT comes behind it in
-- one round trip, so a refusal is an exception. One message to each stream, as most have,
-- takes four statements; all else goes through append, which finds out why.
create or replace function dibs.append_unit(
  streams text[], expected bigint[], counts integer[], ids uuid[], types text[], data json[], metadata json[],
  fences bigint[], past jsonb default null, after uuid[] default null,
  out versions bigint[], out global_positions bigint[], out times timestamptz[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- as in append
set enable_bitmapscan = off
as $$
declare
  begun constant boolean := current_setting('dibs.transaction', true) is not distinct from 'begun';
  one_each constant text := '[1:' || cardinality(streams) || ']';
  fits boolean := false;
  hashes bigint[]; -- of each stream, as its last message has it
  answer json;
begin
  if (
    begun and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
    and array_dims(streams) = one_each and array_dims(expected) = one_each and array_dims(counts) = one_each and array_dims(fences) = one_each
    and array_dims(ids) = one_each and array_dims(types) = one_each and array_dims(data) = one_each and array_dims(metadata) = one_each
    and (past is null or jsonb_typeof(past) = 'array') and (after is null or array_dims(after) = one_each)
    and 1 = all (counts) and '' <> all (streams) and -4 <= all (expected)
  ) then
    perform dibs.lock_shared(streams);
    -- A statement of its own: its snapshot is younger than the locks. An erased stream, and an id
    -- that is recorded already, are for append.
    select bool_and(v.fits), array_agg(v.version + 1), array_agg(v.hash) into fits, versions, hashes
    from (
      select coalesce(m.position, -1) as version, m.hash,
        not coalesce(f.erased, false) and s.fence = coalesce(f.fence, 0)
        and not exists (select from dibs.messages r where r.id = s.id)
        and (
          s.expected = -2
          or s.expected = -4 and m.type <> 'dibs:Tombstone'
          or s.expected = coalesce(m.position, -1) and (s.after is null or s.after = m.id)
          or s.expected < m.position and past -> (s.n - 1)::integer <> 'null'
            and (
              select count(*) = m.position - s.expected
              from dibs.messages b
              where b.stream_name = s.name and b.position > s.expected and past -> (s.n - 1)::integer ? b.type
            )
            and (s.after is null or exists (
              select from dibs.messages b where b.stream_name = s.name and b.position = s.expected and b.id = s.after
            ))
        ) is true as fits
      from unnest(streams, expected, fences, ids, after) with ordinality s (name, expected, fence, id, after, n) -- in its order
      left join lateral (
        select l.position, l.type, l.id, l.group_hash as hash from dibs.messages l where l.stream_name = s.name order by l.position desc limit 1
      ) m on true
      left join lateral (select l.* from dibs.fences l where l.category = split_part(s.name, '-', 1) limit 1) f on true
    ) v;
    if fits then
      with added as (
        insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
        select split_part(r.name, '-', 1), coalesce(r.hash, dibs.group_hash(r.name)), dibs.correlation_category(r.metadata),
          r.name, r.version, r.type, r.id, r.data, r.metadata
        from unnest(streams, versions, hashes, ids, types, data, metadata) r (name, version, hash, id, type, data, metadata)
        where r.id <> '00000000-0000-0000-0000-000000000000'
          and (r.version > 0 or dibs.valid_stream_name(r.name)) -- one that is there has its name
          and dibs.valid_type(r.type) and dibs.valid_content(r.data, r.metadata)
        returning m.global_position, m.time
      )
      select array_agg(a.global_position), array_agg(a.time) into global_positions, times from added a;
      if cardinality(global_positions) = cardinality(streams) then
        return;
      end if;
      perform dibs.refuse_invalid(streams, expected, counts, ids, types, data, metadata, past, after);
      raise exception 'invalid messages: not all of them could be written' using errcode = 'DB001', column = 'ids';
    end if;
  end if;

  select array_agg(a.version order by a.n), array_agg(a.global_position order by a.n), array_agg(a.time order by a.n),
    case when bool_or(a.outcome <> 'written') then json_agg(json_build_object(
      'outcome', a.outcome, 'stream', a.stream, 'version', a.version, 'globalPosition', a.global_position, 'id', a.id,
      'time', (extract(epoch from a.time) * 1000000)::bigint
    ) order by a.n) end
  into versions, global_positions, times, answer
  from dibs.append(streams, expected, counts, ids, types, data, metadata, fences, past => append_unit.past, after => append_unit.after, shared => true)
    with ordinality a (outcome, stream, version, global_position, id, time, met_type, met_data, met_metadata, met_at, n);
  if not begun then
    raise exception 'this is not the transaction that was begun' using errcode = 'DB004';
  end if;
  if answer is not null then
    raise exception 'the messages are not written' using errcode = 'DB003', detail = answer;
  end if;
end
$$;

comment on function dibs.append_unit(text[], bigint[], integer[], uuid[], text[], json[], json[], bigint[], jsonb, uuid[]) is
'append with shared, for a transaction that ends now. Answers with the version, the global position and the time of the last
message of each stream. If it is not written, raises DB003 with the answer of append as JSON in the detail; DB004 if the session
is not in a transaction with the setting dibs.transaction = begun. Does not notify: see ring. As with append_one, the client
validates the content of the messages.';

grant execute on function dibs.append_unit to dibs_writer;
