-- What an operator asks for. It is a step of its own, under the queue's lock.
create or replace function dibs.queue_change(queue_name text, of_category text, action text, of_positions bigint[], reason text)
returns bigint[]
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
  of_streams constant boolean := coalesce((select x.streams from dibs.queues x where x.id = q), false);
  letter constant "char" := case action when 'retry' then 'R' when 'drop' then 'D' when 'cancel' then 'C' end;
  h dibs.queue_heads;
  changed bigint[];
  beyond bigint[];
  linked record;
  n integer;
begin
  if (
    action in ('pause', 'resume') and coalesce(cardinality(of_positions), 0) = 0
    or letter is not null and cardinality(of_positions) between 1 and 1000
  ) is not true then
    raise exception 'invalid action: must be retry, drop or cancel, with 1 to 1000 positions, or pause or resume' using errcode = 'DB001', column = 'action';
  end if;
  if reason is not null and not dibs.valid_text(reason) then
    raise exception 'invalid reason: must be 1 to 255 bytes of visible text' using errcode = 'DB001', column = 'reason';
  end if;
  select x.* into h from dibs.queue_heads x where x.queue = q order by x.version desc limit 1;
  if h.queue is null then
    perform dibs.refuse_removed_queue(q, queue_name);
    h := (q, 0, clock_timestamp(), 0, 0, 0, 0, 'infinity', clock_timestamp(), clock_timestamp(), clock_timestamp(), 0, false, null, 0, 0, 0, 0, false, null, false)::dibs.queue_heads;
  end if;
  h.at := greatest(clock_timestamp(), h.at); -- the next take moves what a clock that was ahead has computed, and this with it

  if letter is null then
    if h.paused = (action = 'pause') then
      return '{}';
    end if;
    h.paused := action = 'pause';
  else
    if action = 'retry' then
      with named as (
        select x.ctid, x.position, x.version, x.state from dibs.queue_open x
        where x.queue = q and x.position = any (of_positions) and (x.state in ('l', 's') or of_streams and x.state in ('d', 'k'))
      ), done as (
        update dibs.queue_open x
        set version = x.version + 1, state = 'l', due = h.at, given = h.at, failures = case when x.state in ('l', 's') then x.failures else 0 end,
          ends = case when x.state in ('l', 's') then x.ends else 0 end, after = case when x.state = 'l' then x.after end
        from named y where x.ctid = y.ctid
        returning x.position, y.version
      ), logged as (
        insert into dibs.queue_log (queue, position, version, what, at, text)
        select q, d.position, d.version, letter, h.at, reason from done d on conflict do nothing
      )
      select array_agg(d.position order by d.position) into changed from done d;
      if not of_streams then
        select x.* into linked from dibs.queue_link(q, of_category, h.cursor, of_positions, h.at) x;
        insert into dibs.queue_log (queue, position, version, what, at, text)
        select q, d.position, d.version, letter, h.at, reason from unnest(linked.done, linked.versions) d (position, version) on conflict do nothing;
        h.held := h.held + linked.n;
        h.linked := h.linked or linked.n > 0;
        h.suspects := h.suspects or linked.suspects;
        changed := array(select x.position from unnest(changed || linked.done) x (position) order by x.position);
      end if;
    else
      with named as (
        select x.ctid, x.position, x.version, x.state, x.session, x.after > 0 as linked from dibs.queue_open x
        where x.queue = q and x.position = any (of_positions) and x.state <> 'z' and (action = 'cancel' or x.state <> 'o')
        for update skip locked
      ), kept as ( -- the places of those behind them
        update dibs.queue_open x set state = 'z', due = null, session = null from named y where x.ctid = y.ctid and y.linked
        returning x.position, y.version, y.state, y.session
      ), gone as (
        delete from dibs.queue_open x using named y where x.ctid = y.ctid and y.linked is not true returning x.position, y.version, y.state, y.session
      ), done as (
        select * from kept union all select * from gone
      ), logged as (
        insert into dibs.queue_log (queue, position, version, what, at, session, text)
        select q, d.position, d.version, letter, h.at, d.session, reason from done d on conflict do nothing
      )
      select array_agg(d.position order by d.position), count(*) filter (where d.state <> 'o') into changed, n from done d;
      h.finished := h.finished + n;
      if action = 'cancel' then
        with beyond as (
          insert into dibs.queue_log (queue, position, version, what, at, text)
          select q, x.global_position, 0, letter, h.at, reason
          from dibs.messages x
          where x.category = of_category and x.global_position = any (of_positions) and x.global_position > h.cursor and x.type <> 'dibs:Tombstone'
            and (x.position = 0 or not of_streams)
          on conflict do nothing
          returning position
        )
        select array_agg(b.position order by b.position) into beyond from beyond b;
        h.ahead := greatest(h.ahead, (select max(b.position) from unnest(beyond) b (position)));
        h.finished := h.finished + coalesce(cardinality(beyond), 0);
        changed := changed || beyond;
      end if;
      if h.held > 0 then -- those behind are let go
        select x.* into linked from dibs.queue_release(q, changed, h.at) x;
        h.held := h.held - linked.n;
        h.suspects := h.suspects or linked.suspects;
      end if;
    end if;
    if coalesce(cardinality(changed), 0) = 0 then
      return '{}';
    end if;
    h.wake := least(h.wake, h.at);
  end if;
  h.version := h.version + 1;
  insert into dibs.queue_heads select h.*;
  return coalesce(changed, '{}');
end
$$;

comment on function dibs.queue_change(text, text, text, bigint[], text) is
'Does to items what an operator asks for, and returns the positions of those that were in a state for it: retry offers later, suspended
and dead ones now, drop finishes those that are not out, cancel those in any state. pause and resume are of the whole queue.';

grant execute on function dibs.queue_change to dibs_operator, dibs_admin;
