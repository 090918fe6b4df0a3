-- An item of a queue that follows no category: its cursor is beyond all messages, and a message is an item once it was parked. It is
-- dead, or suspended while it is to be parked.
create or replace function dibs.queue_park(queue_name text, of_category text, of_position bigint, failures integer, error text, asked boolean, finished boolean)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  q integer;
  h dibs.queue_heads;
  item record;
begin
  if (of_position > 0 and failures between 0 and 32767 and not (asked and finished) and asked is not null) is not true then
    raise exception 'invalid failures: must be between 0 and 32767, and the position more than 0' using errcode = 'DB001', column = 'failures';
  end if;
  q := dibs.queue_lock(queue_name, of_category, false);
  select x.* into h from dibs.queue_heads x where x.queue = q order by x.version desc limit 1;
  if h.queue is null then
    perform dibs.refuse_removed_queue(q, queue_name);
    h := (
      q, 1, clock_timestamp(), 4611686018427387904, of_position, 0, 0, 'infinity', clock_timestamp(), clock_timestamp(), clock_timestamp(), 0, false, null,
      0, 0, 0, 0, false, null, false
    )::dibs.queue_heads;
    insert into dibs.queue_heads select h.*; -- even if nothing is parked, or else the queue would seem to follow its category
  end if;
  if h.cursor <> 4611686018427387904 then
    raise exception 'invalid queue: must be a queue of parked messages, and % follows its category', queue_name using errcode = 'DB001', column = 'queue_name';
  end if;
  if not exists (
    select from dibs.messages x where x.category = of_category and x.global_position = of_position and x.type <> 'dibs:Tombstone'
  ) then
    return false;
  end if;
  select x.version, x.state, x.after into item from dibs.queue_open x where x.queue = q and x.position = of_position;
  if finished then
    if item.state is distinct from 's' then
      return false;
    end if;
    if item.after is null then
      delete from dibs.queue_open x where x.queue = q and x.position = of_position;
    else
      update dibs.queue_open x set state = 'z' where x.queue = q and x.position = of_position;
    end if;
    insert into dibs.queue_log (queue, position, version, what, at, text)
    values (q, of_position, item.version, 'D', greatest(clock_timestamp(), h.at), error) on conflict do nothing;
    return true;
  end if;
  if item.state is null then
    item.version := coalesce((select x.version + 1 from dibs.queue_log x where x.queue = q and x.position = of_position order by x.version desc limit 1), 0);
  elsif item.state <> 'z' and (item.state <> 's' or asked) then
    return false;
  end if;
  h.at := greatest(clock_timestamp(), h.at);
  insert into dibs.queue_open as x (queue, position, version, state, failures, error)
  values (q, of_position, item.version + case when asked then 0 else 1 end, case when asked then 's' else 'd' end, failures, error)
  on conflict (queue, position) do update
  set version = excluded.version, state = excluded.state, failures = excluded.failures, error = excluded.error, ends = 0, due = null, session = null;
  if not asked then
    insert into dibs.queue_log (queue, position, version, what, at, text) values (q, of_position, item.version, 'x', h.at, error) on conflict do nothing;
  end if;
  h.floor := least(h.floor, of_position);
  h.version := h.version + 1;
  insert into dibs.queue_heads select h.*;
  return true;
end
$$;

comment on function dibs.queue_park(text, text, bigint, integer, text, boolean, boolean) is
'Has a queue of parked messages know a message, as a dead item with its failures and the last error, or as one that is to be parked, if it is
asked for, or, finished, as one that is so no more; and whether it did: an item that is open stays as it is, but one that is to be parked is parked.';

grant execute on function dibs.queue_park to dibs_writer, dibs_worker, dibs_operator, dibs_admin;
