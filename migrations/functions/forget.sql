create or replace function dibs.forget(
  category text, older_than interval, reason text default null, from_position bigint default 0,
  max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (
  outcome text, streams bigint, messages bigint, next_position bigint, more boolean, key_life interval, unhandled timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  commands constant text := substring(category from '^(.+)[:+]reservation[+][^:+]+$'); -- null for a category of no reserver
  inbox constant boolean := commands is null and category ~ '[:+]inbox$';
  queued constant boolean := exists ( -- but by those of parked messages
    select from dibs.queues q
    where q.category = forget.category and q.removed is null
      and (select h.cursor from dibs.queue_heads h where h.queue = q.id order by h.version desc limit 1) is distinct from 4611686018427387904
  );
  side constant text := category || case when strpos(category, ':') > 0 then '+' else ':' end;
  records constant text := side || 'forgotten-1';
  declared record;
  found_at record;
  before timestamptz;
  passed bigint; -- by the consumers of the copies
  head bigint;
  last bigint;
  end_position bigint;
  looked integer := 0;
  names text[] := '{}';
  lasts bigint[] := '{}'; -- the global positions of their last messages
  trims text[]; -- the records of their trimming
  older boolean := false; -- there was one from before the time
begin
  perform dibs.refuse_invalid_removal(category || '-', reason, max_messages, dry_run, id);
  if category = '' or strpos(category, '-') > 0 then
    raise exception 'invalid category: must be the name of a category' using errcode = 'DB001', column = 'category';
  end if;
  if older_than is null or older_than <= '0' or older_than > '100 years' then
    raise exception 'invalid older_than: must be more than 0, and at most 100 years' using errcode = 'DB001', column = 'older_than';
  end if;
  if from_position is null or from_position < 0 then
    raise exception 'invalid from_position: must be a global position from 0' using errcode = 'DB001', column = 'from_position';
  end if;
  streams := 0; messages := 0; next_position := from_position; more := false;
  if not dry_run then
    perform dibs.lock_retention(category);
    perform dibs.await_standby(); -- also where it finds nothing to do
  end if;

  if inbox or queued and commands is null then
    key_life := '24 hours';
  else
    select m.type, m.global_position, case when dibs.storable_json(m.data) then m.data end ->> 'seconds' as seconds into declared
    from dibs.messages m where m.stream_name = side || 'life-1' order by m.position limit 1;
    if declared.type is distinct from 'KeyLifeDeclared' or coalesce(declared.seconds, '') !~ '^[1-9][0-9]{1,9}$' or exists (
      select from dibs.messages m where m.category = forget.category and m.global_position < declared.global_position
    ) then
      outcome := 'no_key_life';
      return next;
      return;
    end if;
    key_life := make_interval(secs => declared.seconds::bigint);
  end if;
  if older_than < key_life then
    outcome := 'inside_key_life';
    return next;
    return;
  end if;

  if id is not null then
    select m.stream_name, m.type, m.data into found_at from dibs.messages m where m.id = forget.id;
    if found then
      if found_at.stream_name <> records or found_at.type <> 'dibs:Forgotten' then
        raise exception 'invalid id: must be new, and another message has it' using errcode = 'DB001', column = 'id';
      end if;
      outcome := 'forgotten'; more := true;
      streams := (found_at.data ->> 'streams')::bigint;
      messages := (found_at.data ->> 'messages')::bigint;
      next_position := (found_at.data ->> 'nextPosition')::bigint;
      return next;
      return;
    end if;
  end if;

  if queued then
    passed := dibs.passed(category);
  end if;
  if commands is not null then
    -- A command that is not handled yet meets the reservations that were made up to a life of the keys before it.
    select m.time into unhandled
    from dibs.messages m where m.category = commands and m.global_position >= dibs.passed(commands) order by m.global_position limit 1;
    passed := dibs.passed(category);
  end if;
  before := least(clock_timestamp(), unhandled) - older_than;

  -- The last message of a category stays, and with it its stream: a consumer that has read it would
  -- be ahead of the category.
  select m.global_position into end_position
  from dibs.messages m where m.category = forget.category order by m.global_position desc limit 1;
  for found_at in
    select m.global_position, m.stream_name, m.position, m.type, m.time, m.metadata
    from dibs.messages m
    where m.category = forget.category and m.global_position >= from_position
    order by m.global_position
    limit max_messages
  loop
    looked := looked + 1;
    older := older or found_at.time < before;
    if found_at.time < before and found_at.global_position < end_position and (case
      when inbox then found_at.type in ('Received', 'Undone')
      when queued and commands is null then not starts_with(found_at.type, 'dibs:') and found_at.global_position < coalesce(passed, 9223372036854775807)
      when commands is null then found_at.type = 'Confirmed'
      else found_at.position = 0 and found_at.type <> 'dibs:Tombstone' and dibs.reservation_of(found_at.metadata, true) is not null
        and (dibs.reservation_of(found_at.metadata, true) ->> 'reservedHandled' is distinct from 'false' or found_at.global_position < coalesce(passed, 0))
    end) then
      select m.position into head from dibs.messages m where m.stream_name = found_at.stream_name order by m.position limit 1;
      select m.position into last from dibs.messages m where m.stream_name = found_at.stream_name order by m.position desc limit 1;
      if last = found_at.position and dibs.kept_tombstone(found_at.stream_name) is null
        and (not queued and commands is null or (select i.queue from dibs.open_item(found_at.stream_name, head, last + 1) i) is null)
        and (commands is null or (
          select i.queue from dibs.open_item(coalesce(found_at.metadata ->> 'causationMessageStreamName', ''), 0, 9223372036854775807) i
        ) is null)
      then
        if messages > 0 and messages + last - head + 1 > max_messages then
          more := true;
          exit;
        end if;
        names := array_append(names, found_at.stream_name);
        lasts := array_append(lasts, found_at.global_position);
        messages := messages + last - head + 1;
      end if;
    end if;
    next_position := found_at.global_position + 1;
  end loop;
  more := more or looked = max_messages and older;
  streams := cardinality(names);
  outcome := case when streams > 0 then 'forgotten' else 'nothing' end;
  if dry_run or streams = 0 then
    return next;
    return;
  end if;

  select array_agg(r.name) into trims
  from (select dibs.retention_stream(s.name) as name from unnest(names) s (name)) r
  where exists (select from dibs.messages m where m.stream_name = r.name);
  if trims is not null then
    perform dibs.lock_retention(split_part(trims[1], '-', 1));
  end if;
  perform pg_advisory_xact_lock(1684628083, dibs.lock_key(k.category))
  from (
    select split_part(s.name, '-', 1) as category
    from unnest(array[names[1], trims[1], records]) s (name) where s.name is not null order by s.name collate "C" offset 0
  ) k;
  -- A message may have been appended since.
  names := array(
    select s.name from unnest(names, lasts) s (name, last)
    where s.last = (select m.global_position from dibs.messages m where m.stream_name = s.name order by m.position desc limit 1)
  );
  streams := cardinality(names);
  if queued then
    delete from dibs.queue_log l
    using dibs.queues q, dibs.messages m
    where q.category = forget.category and m.stream_name = any (names) and l.queue = q.id and l.position = m.global_position;
  end if;
  messages := dibs.remove_streams(names);
  if trims is not null then
    perform dibs.remove_streams(trims);
  end if;
  perform dibs.begin_again(records);
  insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
  values (
    split_part(records, '-', 1), dibs.group_hash(records), records, dibs.stream_version(records) + 1, 'dibs:Forgotten', coalesce(id, gen_random_uuid()),
    json_strip_nulls(json_build_object(
      'before', to_char(before at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'streams', streams, 'messages', messages,
      'nextPosition', next_position, 'keyLifeSeconds', extract(epoch from key_life)::bigint, 'by', session_user, 'reason', reason))
  );
  return next;
end
$$;

comment on function dibs.forget(text, interval, text, bigint, integer, boolean, uuid) is
'Removes the keys of a category that are older than an age, with all their messages: no tombstone is left, and the keys are free.
A request for such a key that comes later is carried out again. It removes

  the requests of an inbox, such as payments:inbox, that were received and undone longer ago, from a day on;
  the items of a category that queues read, from a day on: whole streams of which every queue has finished all items;
  the intents of a category whose first manager declared how long its keys live, that were confirmed longer ago than that;
  the reservations of a reserver, as in account:command+reservation+accounts, if their life was declared too, and only where the
  command was handled. A reservation stays while a consumer of the commands has yet to pass a command that could meet it, while
  its copy has yet to be delivered, and while its stream, or its command''s stream, has a parked message, or another that a queue has
  not finished. unhandled is the time
  of the first such command: reservations of the time from older_than before it all stay.

A key that has the last message of its category stays. A key that was deleted stays, and so does a stream that ends otherwise.

It looks at up to max_messages messages from a global position on, and removes as many, or one key with more; next_position
is where to go on, if there are more to look at. The end is a call that finds no message from before the time. With dry_run
nothing is removed. A call again with the same id, after its answer was lost, removes nothing and answers as the first did, and
that there are more.

Answers with one row:
  forgotten        and recorded, without names, by a message of type dibs:Forgotten in payment:intent+forgotten-1 for payment:intent
  nothing          there was nothing to remove
  no_key_life      nothing was removed: it is no inbox, no queue reads it, and it declares no life of its keys, or had a key before it did
  inside_key_life  nothing was removed: older_than is less than key_life
Raises DB001 for bad input, 0A000 above READ COMMITTED, 55P03 after 10 seconds of waiting for another transaction.';

grant execute on function dibs.forget to dibs_admin;
