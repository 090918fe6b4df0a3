create or replace function dibs.trim(
  stream text, keep bigint default null, before timestamptz default null, reason text default null,
  min_age interval default '15 minutes', max_messages integer default 10000, dry_run boolean default false, id uuid default null,
  below bigint default null
)
returns table (outcome text, removed bigint, first_position bigint, version bigint, recent boolean, more boolean, queue text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  young timestamptz;
  records text;
  head record;
  found_at record;
  item record;
  cut bigint; -- all below it may go
  upto bigint; -- all below it goes now
begin
  perform dibs.refuse_invalid_removal(stream, reason, max_messages, dry_run, id);
  if keep is null and before is null and below is null or keep < 1 then
    raise exception 'invalid keep: must be at least 1, or be null with a time or a position' using errcode = 'DB001', column = 'keep';
  end if;
  if below < 0 then
    raise exception 'invalid below: must be at least 0' using errcode = 'DB001', column = 'below';
  end if;
  if min_age is null or min_age < '0' or min_age > '100 years' then
    raise exception 'invalid min_age: must be between 0 and 100 years' using errcode = 'DB001', column = 'min_age';
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
        raise exception 'invalid id: must be new, and another message has it' using errcode = 'DB001', column = 'id';
      end if;
      return query select 'trimmed', (found_at.data ->> 'removed')::bigint, (found_at.data ->> 'upTo')::bigint + 1,
        dibs.stream_version(stream), false, true, null::text;
      return;
    end if;
  end if;

  select m.position, m.metadata into head from dibs.messages m where m.stream_name = stream order by m.position limit 1;
  if not found then
    return query select 'no_stream', 0::bigint, null::bigint, dibs.stream_version(stream), false, false, null::text;
    return;
  end if;
  first_position := head.position;
  select m.position into version from dibs.messages m where m.stream_name = stream order by m.position desc limit 1;

  -- A tombstone that stands for another stream stays, and so does the last record of a trim.
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
  select m.position, m.time, m.global_position into found_at
  from dibs.messages m
  where m.stream_name = stream and m.position < upto and (m.time >= least(young, before) or m.global_position >= below)
  order by m.position
  limit 1;
  if found then
    upto := found_at.position;
    recent := (before is null or found_at.time < before) and (below is null or found_at.global_position < below);
    more := false;
  else
    recent := false;
    more := upto < cut;
  end if;
  select i.position, i.queue into item from dibs.open_item(stream, head.position, upto) i;
  if item.queue is not null then
    upto := item.position;
    trim.queue := item.queue;
    recent := false;
    more := false;
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

comment on function dibs.trim(text, bigint, timestamptz, text, interval, integer, boolean, uuid, bigint) is
'Removes the first messages of a stream: all but the last keep, those from before a time, those below a global position, or those
that are all of it that is given. The last
message always stays, and so do the stream''s version and the positions of the remaining messages, which are dense.

The ids of the removed messages are forgotten: a message that is written again would not be found to be there, and a write
whose answer was lost would be found not to have happened. So messages younger than min_age stay, however many they are;
recent says that a message stayed for that only.

A message that a queue, of that name, has not finished stays, with all behind it, and first_position is its position: so does one that a
consumer has parked, until it is redriven or dropped. A message may be parked after its trim: consumers do not wait for it.

A call removes at most max_messages, so that it is short; more says that there are more to remove. With dry_run nothing is
removed, and removed is how many would be by all calls together. A call again with the same id, after its answer was
lost, removes nothing and answers as the first did, and that there is more.

Answers with one row:
  trimmed      and recorded, by a message of type dibs:Trimmed in dibs.retention_stream(stream), unless that is null
  nothing      there was nothing to remove
  reservation  nothing was removed: the first message makes a reservation, which would be free again
  no_stream    there is no message; version is a tombstone''s, or -1
Raises DB001 for bad input, 0A000 above READ COMMITTED, 55P03 after 10 seconds of waiting for another transaction.';

grant execute on function dibs.trim to dibs_admin;
