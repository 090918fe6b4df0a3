-- Ends a queue, under its lock. Its name is kept unless no worker ever took from the queue, or the caller frees it: a worker that still
-- runs would begin again with the first message of the category.
create or replace function dibs.queue_remove(
  queue_name text, of_category text, unfinished boolean default false, free_name boolean default false,
  out done boolean, out name_kept boolean,
  out waiting bigint, out out_items bigint, out later bigint, out suspended bigint, out held bigint, out dead bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  q dibs.queues;
  h dibs.queue_heads;
begin
  if queue_name is null or of_category is null then
    raise exception 'invalid queue_name: must not be null, nor the category' using errcode = 'DB001', column = 'queue_name';
  end if;
  done := true;
  name_kept := false;
  waiting := 0; out_items := 0; later := 0; suspended := 0; held := 0; dead := 0;
  select x.* into q from dibs.queues x where x.name = queue_name;
  if q.id is null then
    return;
  end if;
  if q.category = of_category and q.removed is not null then
    if free_name then
      delete from dibs.queues x where x.id = q.id;
    end if;
    name_kept := free_name is not true;
    return;
  end if;
  perform dibs.queue_lock(queue_name, of_category);
  select x.* into q from dibs.queues x where x.name = queue_name;
  select x.* into h from dibs.queue_heads x where x.queue = q.id order by x.version desc limit 1;
  select count(*) filter (where x.state = 'o'), count(*) filter (where x.state = 'l'), count(*) filter (where x.state = 's'),
    count(*) filter (where x.state = 'h'), count(*) filter (where x.state in ('d', 'k'))
  into out_items, later, suspended, held, dead
  from dibs.queue_open x where x.queue = q.id;
  if q.streams is not null then
    select count(*) into waiting
    from (
      select from dibs.messages m
      where m.category = of_category and m.global_position > coalesce(h.cursor, 0) and m.type <> 'dibs:Tombstone' and (m.position = 0 or not q.streams)
        and not exists (select from dibs.queue_log l where l.queue = q.id and l.position = m.global_position and l.what = 'C')
      limit 100000
    ) m;
  end if;
  done := unfinished is true or waiting + out_items + later + suspended + held + dead = 0;
  if not done then
    return;
  end if;
  delete from dibs.queue_open x where x.queue = q.id;
  delete from dibs.queue_sessions x where x.queue = q.id;
  delete from dibs.queue_tickets x where x.queue = q.id;
  delete from dibs.queue_log x where x.queue = q.id;
  delete from dibs.queue_heads x where x.queue = q.id;
  name_kept := q.streams is not null and h.cursor is distinct from 4611686018427387904 and free_name is not true;
  if name_kept then
    update dibs.queues x set removed = clock_timestamp() where x.id = q.id;
  else
    delete from dibs.queues x where x.id = q.id;
  end if;
end
$$;

comment on function dibs.queue_remove(text, text, boolean, boolean) is
'Ends a queue, if all its items are finished or unfinished says that they need not be, and counts the items that are not; waiting up to
100000. Nothing keeps messages for it any more. Its name is refused from then on, with DB004, unless no worker ever took from the queue, or it kept parked messages, or
free_name is set, which also frees the name of a queue that was removed before: a worker of it then begins with the first message of
the category.';

grant execute on function dibs.queue_remove to dibs_admin;
