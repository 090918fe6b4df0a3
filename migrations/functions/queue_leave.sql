create or replace function dibs.queue_leave(
  queue_name text, of_category text, me bigint, next_session bigint, lease bigint, kept_positions bigint[], kept_versions integer[]
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  q constant integer := dibs.queue_lock(queue_name, of_category);
  h dibs.queue_heads;
  n integer := 0;
  gone bigint[];
  let record;
  moved boolean := false;
  of_streams constant boolean := coalesce((select x.streams from dibs.queues x where x.id = q), false);
  ends boolean := true;
begin
  if (me > 0 and (next_session is null or next_session > 0 and next_session <> me and lease between 10000 and 86400000000)) is not true then
    raise exception 'invalid session: must be more than 0, as the next one, and the lease between 10 ms and 24 h, in microseconds' using errcode = 'DB001', column = 'me';
  end if;
  select x.* into h from dibs.queue_heads x where x.queue = q order by x.version desc limit 1;
  if h.queue is null then
    perform dibs.refuse_removed_queue(q, queue_name);
    delete from dibs.queue_tickets x where x.queue = q and x.session = me;
    return;
  end if;
  h.at := greatest(clock_timestamp(), h.at); -- as in queue_change
  if next_session is not null then
    -- A row that a transaction of a caller's is finishing stays: the queue does not wait for it.
    update dibs.queue_open x set session = next_session
    where x.ctid = any (array(
      select y.ctid
      from unnest(kept_positions, kept_versions) u (position, version)
      cross join lateral (
        select z.ctid from dibs.queue_open z
        where z.queue = q and z.position = u.position and z.version = u.version and z.state = 'o' and z.session = me
        for update skip locked
      ) y
    ));
    moved := found;
    if moved then
      insert into dibs.queue_sessions as x (queue, session, until, lasts)
      values (q, next_session, h.at + lease * interval '1 microsecond', lease * interval '1 microsecond')
      on conflict (queue, session) do update set until = greatest(x.until, excluded.until), lasts = greatest(x.lasts, excluded.lasts);
    end if;
  end if;
  with back as (
    update dibs.queue_open x set version = x.version + 1, state = case when x.after is null then 'l' else 'h' end, session = null, after = case when x.after is not null then x.after when x.ends > 1 then 0 end, due = h.at, given = h.at
    where x.ctid = any ((select dibs.queue_out(q, of_streams, h.floor, array[me]))::tid[])
    returning x.position, x.version
  ), logged as (
    insert into dibs.queue_log (queue, position, version, what, at, session)
    select q, b.position, b.version - 1, 'u', h.at, me from back b
    on conflict do nothing
  )
  select count(*), array_agg(b.position) into n, gone from back b;
  if h.linked then
    select x.* into let from dibs.queue_release(q, gone, h.at) x;
    h.held := h.held - let.n;
    h.suspects := h.suspects or let.suspects;
  end if;
  if not of_streams then -- what a transaction of a caller's is finishing stays
    ends := not exists (select from dibs.queue_open y where y.queue = q and y.position >= h.floor and y.state = 'o' and y.session = me);
  end if;
  if ends then
    delete from dibs.queue_sessions x where x.queue = q and x.session = me;
  end if;
  delete from dibs.queue_tickets x where x.queue = q and x.ticket > h.turn and x.session = me;
  if n > 0 or moved then
    h.version := h.version + 1;
    h.wake := least(h.wake, case when n > 0 then h.at else h.at + lease * interval '1 microsecond' end);
    h.returned := h.returned + n;
    insert into dibs.queue_heads select h.*;
  end if;
end
$$;

comment on function dibs.queue_leave(text, text, bigint, bigint, bigint, bigint[], integer[]) is
'Ends a session: what it has out is offered again at once, and counts no failure. With a next session, the deliveries that are kept go to that.';

grant execute on function dibs.queue_leave to dibs_worker;
