-- As dibs.delete_stream, which refuses the records of removals. Those of a stream go with its name, by this function.
create or replace function dibs.remove_stream(
  stream text, expected bigint default null, erase_name boolean default false, reason text default null,
  max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (outcome text, version bigint, messages bigint, tombstone_stream text, more boolean)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
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
    raise exception 'invalid expected: must be a position from 0' using errcode = 'DB001', column = 'expected';
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

  -- Below a tombstone there is nothing that a writer looks at: that much is removed
  -- without holding any up.
  for locked in 0..1 loop
    select m.position, m.type, m.metadata into head
    from dibs.messages m where m.stream_name = stream and m.position >= first order by m.position limit 1;
    select m.position, m.type, m.id, m.data, m.metadata into tail
    from dibs.messages m where m.stream_name = stream order by m.position desc limit 1;
    exit when dry_run or tail.type = tombstone and tail.position - head.position > max_messages;
    first := coalesce(head.position, 0);
    if locked = 0 then
      perform pg_advisory_xact_lock(1684628083, dibs.lock_key(k.category))
      from (
        select split_part(s.name, '-', 1) as category
        from unnest(array[stream, records]) s (name) where s.name is not null order by s.name collate "C" offset 0
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
    -- It was done, and the answer was lost.
    select m.stream_name, m.position, m.data into stone
    from dibs.messages m
    where m.id = remove_stream.id and m.type = tombstone and m.stream_name in (stream, erased_to);
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
    -- Somebody wrote after the tombstone before all below it was removed.
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
    raise exception 'invalid stream: must not be the tombstone of a stream that was deleted with its name'
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

  if not stands and (select i.queue from dibs.open_item(stream, 0, 9223372036854775807, true) i) is not null then
    outcome := 'open_item'; messages := 0; version := tail.position;
    return next;
    return;
  end if;

  outcome := 'deleted';
  if dry_run then
    return next;
    return;
  end if;
  if id is not null and id is distinct from tail.id then
    perform from dibs.messages m where m.id = remove_stream.id;
    if found then
      raise exception 'invalid id: must be new, and another message has it' using errcode = 'DB001', column = 'id';
    end if;
  end if;

  complete := version - head.position <= max_messages;
  if complete and exists (select from dibs.messages m where m.stream_name = records) then
    -- The records of its trimming go before the name does.
    select not d.more into complete from dibs.remove_stream(records, null, true, reason, max_messages) d;
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
