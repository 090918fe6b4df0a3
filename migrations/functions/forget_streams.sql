-- Removes the streams of a category whose last message is of one of these types and from before a time,
-- and records that, without names, in the stream records, with the number of streams under the name
-- counted and with other facts. The caller has taken dibs.lock_retention.
create or replace function dibs.forget_streams(
  category text, ends text[], before timestamptz, records text, counted text, facts json,
  reason text, from_position bigint, max_messages integer, dry_run boolean, id uuid,
  out outcome text, out streams bigint, out messages bigint, out next_position bigint, out more boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  found_at record;
  head bigint;
  last bigint;
  end_position bigint;
  looked integer := 0;
  names text[] := '{}';
  trims text[]; -- the records of their trimming
  older boolean := false; -- there was one from before the time
begin
  streams := 0; messages := 0; next_position := from_position; more := false;
  if id is not null then
    select m.stream_name, m.type, m.data into found_at from dibs.messages m where m.id = forget_streams.id;
    if found then
      if found_at.stream_name <> records or found_at.type <> 'dibs:Forgotten' then
        raise exception 'invalid id: it is another message''s' using errcode = 'DB001', column = 'id';
      end if;
      outcome := 'forgotten'; more := true;
      streams := (found_at.data ->> counted)::bigint;
      messages := (found_at.data ->> 'messages')::bigint;
      next_position := (found_at.data ->> 'nextPosition')::bigint;
      return;
    end if;
  end if;

  -- The last message of a category stays, and with it its stream: a consumer that has read it would
  -- be ahead of the category.
  select m.global_position into end_position
  from dibs.messages m where m.category = forget_streams.category order by m.global_position desc limit 1;
  for found_at in
    select m.global_position, m.stream_name, m.position, m.type, m.time
    from dibs.messages m
    where m.category = forget_streams.category and m.global_position >= from_position
    order by m.global_position
    limit max_messages
  loop
    looked := looked + 1;
    older := older or found_at.time < before;
    if found_at.type = any (ends) and found_at.time < before and found_at.global_position < end_position then
      select m.position into head from dibs.messages m where m.stream_name = found_at.stream_name order by m.position limit 1;
      select m.position into last from dibs.messages m where m.stream_name = found_at.stream_name order by m.position desc limit 1;
      if last = found_at.position and dibs.kept_tombstone(found_at.stream_name) is null then
        if messages > 0 and messages + last - head + 1 > max_messages then
          more := true;
          exit;
        end if;
        names := array_append(names, found_at.stream_name);
        messages := messages + last - head + 1;
      end if;
    end if;
    next_position := found_at.global_position + 1;
  end loop;
  more := more or looked = max_messages and older;
  streams := cardinality(names);
  outcome := case when streams > 0 then 'forgotten' else 'nothing' end;
  if dry_run or streams = 0 then
    return;
  end if;

  select array_agg(r.name) into trims
  from (select dibs.retention_stream(s.name) as name from unnest(names) s (name)) r
  where exists (select from dibs.messages m where m.stream_name = r.name);
  if trims is not null then
    perform dibs.lock_retention(split_part(trims[1], '-', 1));
  end if;
  perform pg_advisory_xact_lock(1684628083, k.key)
  from (
    select distinct dibs.lock_key(split_part(s.name, '-', 1)) as key
    from unnest(array[names[1], trims[1], records]) s (name) where s.name is not null order by 1
  ) k;
  -- A message may have been appended since.
  names := array(
    select s.name from unnest(names) s (name)
    where (
      select m.type = any (ends) and m.time < before
      from dibs.messages m where m.stream_name = s.name order by m.position desc limit 1
    )
  );
  streams := cardinality(names);
  messages := dibs.remove_streams(names);
  if trims is not null then
    perform dibs.remove_streams(trims);
  end if;
  perform dibs.begin_again(records);
  insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
  values (
    split_part(records, '-', 1), dibs.group_hash(records), records, dibs.stream_version(records) + 1, 'dibs:Forgotten', coalesce(id, gen_random_uuid()),
    json_strip_nulls((json_build_object(
      'before', to_char(before at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), counted, streams, 'messages', messages,
      'nextPosition', next_position, 'by', session_user, 'reason', reason)::jsonb || facts::jsonb)::json)
  );
end
$$;
