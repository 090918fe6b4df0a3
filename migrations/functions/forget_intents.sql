create or replace function dibs.forget_intents(
  category text, before timestamptz, reason text default null, from_position bigint default 0,
  max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (outcome text, intents bigint, messages bigint, next_position bigint, more boolean, key_life interval)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  side text; -- the category in which the life of keys is declared
  records text;
  declared record;
  found_at record;
  head bigint;
  last bigint;
  end_position bigint;
  looked integer := 0;
  streams text[] := '{}';
  trims text[]; -- the records of their trimming
  older boolean := false; -- there was one from before the time
begin
  perform dibs.refuse_invalid_removal(category || '-', reason, max_messages, dry_run, id);
  if category = '' or strpos(category, '-') > 0 then
    raise exception 'invalid category: it is no category' using errcode = 'DB001', column = 'category';
  end if;
  if before is null or not isfinite(before) then
    raise exception 'invalid before: it is a time' using errcode = 'DB001', column = 'before';
  end if;
  if from_position is null or from_position < 0 then
    raise exception 'invalid from_position: it is a global position from 0' using errcode = 'DB001', column = 'from_position';
  end if;
  side := category || case when strpos(category, ':') > 0 then '+' else ':' end || 'life';
  records := side || '-forgotten';
  intents := 0; messages := 0; next_position := from_position; more := false;
  if not dry_run then
    perform dibs.lock_retention(category);
    perform dibs.await_standby(); -- also where it finds nothing to do
  end if;

  select m.type, case when dibs.storable_json(m.data) then m.data end ->> 'seconds' as seconds into declared
  from dibs.messages m where m.stream_name = side || '-1' order by m.position limit 1;
  if declared.type is distinct from 'KeyLifeDeclared' or coalesce(declared.seconds, '') !~ '^[1-9][0-9]{1,9}$' then
    outcome := 'no_key_life';
    return next;
    return;
  end if;
  key_life := make_interval(secs => declared.seconds::bigint);

  if id is not null then
    select m.stream_name, m.type, m.data into found_at from dibs.messages m where m.id = forget_intents.id;
    if found then
      if found_at.stream_name <> records or found_at.type <> 'dibs:Forgotten' then
        raise exception 'invalid id: it is another message''s' using errcode = 'DB001', column = 'id';
      end if;
      outcome := 'forgotten'; more := true;
      intents := (found_at.data ->> 'intents')::bigint;
      messages := (found_at.data ->> 'messages')::bigint;
      next_position := (found_at.data ->> 'nextPosition')::bigint;
      return next;
      return;
    end if;
  end if;

  if before > clock_timestamp() - key_life then
    outcome := 'inside_key_life';
    return next;
    return;
  end if;

  -- The last message of a category stays, and with it its stream: a consumer that has read it would
  -- be ahead of the category.
  select m.global_position into end_position
  from dibs.messages m where m.category = forget_intents.category order by m.global_position desc limit 1;
  for found_at in
    select m.global_position, m.stream_name, m.position, m.type, m.time
    from dibs.messages m
    where m.category = forget_intents.category and m.global_position >= from_position
    order by m.global_position
    limit max_messages
  loop
    looked := looked + 1;
    older := older or found_at.time < before;
    if found_at.type = 'Confirmed' and found_at.time < before and found_at.global_position < end_position then
      select m.position into head from dibs.messages m where m.stream_name = found_at.stream_name order by m.position limit 1;
      select m.position into last from dibs.messages m where m.stream_name = found_at.stream_name order by m.position desc limit 1;
      if last = found_at.position and dibs.kept_tombstone(found_at.stream_name) is null then
        if messages > 0 and messages + last - head + 1 > max_messages then
          more := true;
          exit;
        end if;
        streams := array_append(streams, found_at.stream_name);
        messages := messages + last - head + 1;
      end if;
    end if;
    next_position := found_at.global_position + 1;
  end loop;
  more := more or looked = max_messages and older;
  intents := cardinality(streams);
  outcome := case when intents > 0 then 'forgotten' else 'nothing' end;
  if dry_run or intents = 0 then
    return next;
    return;
  end if;

  select array_agg(r.name) into trims
  from (select dibs.retention_stream(s.name) as name from unnest(streams) s (name)) r
  where exists (select from dibs.messages m where m.stream_name = r.name);
  if trims is not null then
    perform dibs.lock_retention(split_part(trims[1], '-', 1));
  end if;
  perform pg_advisory_xact_lock(1684628083, k.key)
  from (
    select distinct dibs.lock_key(split_part(s.name, '-', 1)) as key
    from unnest(array[streams[1], trims[1], records]) s (name) where s.name is not null order by 1
  ) k;
  -- Nothing is appended to a result, but any client may write anything.
  streams := array(
    select s.name from unnest(streams) s (name)
    where (select m.type from dibs.messages m where m.stream_name = s.name order by m.position desc limit 1) = 'Confirmed'
  );
  intents := cardinality(streams);
  messages := dibs.remove_streams(streams);
  if trims is not null then
    perform dibs.remove_streams(trims);
  end if;
  perform dibs.begin_again(records);
  insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
  values (
    side, dibs.group_hash(records), records, dibs.stream_version(records) + 1, 'dibs:Forgotten', coalesce(id, gen_random_uuid()),
    json_strip_nulls(json_build_object(
      'before', to_char(before at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'keyLifeSeconds', declared.seconds::bigint,
      'intents', intents, 'messages', messages, 'nextPosition', next_position, 'by', session_user, 'reason', reason))
  );
  return next;
end
$$;

comment on function dibs.forget_intents(text, timestamptz, text, bigint, integer, boolean, uuid) is
'Removes the intents of a category that were confirmed before a time, key and all: no tombstone is left, and the keys are free.
Only in a category whose first manager declared how long its keys live, and only intents that were confirmed longer ago than that.
An intent that has the last message of its category stays, and so does one that was deleted.

It looks at up to max_messages messages from a global position on, and removes as many, or one intent with more; next_position
is where to go on, if there are more to look at. The end is a call that finds no message from before the time. With dry_run
nothing is removed. A call again with the same id, after its answer was lost, removes nothing and answers as the first did, and
that there are more.

Answers with one row:
  forgotten        and recorded, without names, by a message of type dibs:Forgotten in payment:intent+life-forgotten for payment:intent
  nothing          there was nothing to remove
  no_key_life      nothing was removed: the category declares no life of its keys
  inside_key_life  nothing was removed: the time is less than key_life ago
Raises DB001 for bad input, 0A000 above READ COMMITTED, 55P03 after 10 seconds of waiting for another transaction.';

grant execute on function dibs.forget_intents to dibs_admin;
