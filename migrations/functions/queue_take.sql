-- Finishes deliveries, gives back what sessions that are over have out, and reserves items, under the queue's
-- lock: one transaction. The comments of the tables say what the words mean.
--
-- A read of a table that changes with each item goes by an index, whatever the statistics say: none is analyzed.
-- Rows are looked up one by one, by position, and an offset of 0 keeps the look-up from becoming a join or a filter:
-- planned in a session that met the queue when it was small, either would read all open rows of the queue in each take.
-- Rows by date are ordered by "after" too, which is null in all of them: else the planner sorts them instead of reading the
-- first of the index.
create or replace function dibs.queue_take(
  queue_name text, of_category text, me bigint, lease bigint,
  ended_positions bigint[], ended_versions integer[], ended_kinds text, ended_delays bigint[], ended_errors text[],
  want integer, wait bigint, own_ticket bigint,
  max_failures integer, hold boolean, max_out integer, rate double precision, burst integer,
  ended_seen bigint[] default null, wakes text[] default null, ended_sessions bigint[] default null,
  of_slots bigint default null, resumed bigint[] default null, others bigint[] default null, other_wants integer[] default null,
  out endings text,
  out positions bigint[], out versions integer[], out failures integer[],
  out ids uuid[], out streams text[], out stream_positions bigint[], out types text[], out data text[], out metadata text[], out times bigint[],
  out ticket bigint, out more boolean, out wake bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  patience constant interval := '200 ms'; -- for so long an item is kept for the first in line
  end_of_time constant bigint := 9223372036854775807;
  dying constant "char" := case when hold then 'k' else 'd' end;
  q integer;
  h dibs.queue_heads;
  now timestamptz;
  total integer; -- how many are wanted still
  owners bigint[]; -- of the others' items, in their order
  kept integer := 0; -- for those before in line
  changed boolean := false;
  looks boolean; -- through the sessions, once in a second
  over bigint[]; -- sessions
  gone bigint[]; -- finished, or dead
  gone_versions integer[];
  freed bigint[]; -- let go, and not taken yet
  due_now boolean; -- something may be due
  picked bigint[]; -- of the rows that were there: taken
  skipped bigint[];
  n integer; m integer; l integer;
  low bigint; high bigint; up_to bigint;
  soon timestamptz;
  again timestamptz; -- when what is there may be reserved, where a bound or the line keeps it
  bounded boolean := false;
  full_page boolean;
  turns boolean := false; -- it is the turn of what nobody has met
  newer integer := 0; -- of the places, for that
  moved boolean := false; -- what is reserved has come from the sessions of earlier attempts
  aside bigint; -- of those, the next of the key that was met last
  alone record; -- of dibs.queue_alone
  let record; -- of dibs.queue_release
  p bigint[]; i uuid[]; s text[]; o bigint[]; t text[]; d text[]; e text[]; at bigint[];
begin
  if (
    me > 0 and lease between 10000 and 86400000000 and want between 0 and 1000 and coalesce(wait, 0) between 0 and 900000000
    and max_failures between 1 and 32767 and hold is not null and coalesce(max_out, 1) > 0
    and (rate is null or rate > 0 and rate < 'Infinity' and burst > 0)
    and coalesce(cardinality(ended_positions), 0) between 0 and 1000
    and (
      coalesce(cardinality(ended_positions), 0) = 0
      or cardinality(ended_positions) = cardinality(ended_versions) and length(ended_kinds) = cardinality(ended_positions)
        and cardinality(ended_delays) = cardinality(ended_positions) and cardinality(ended_errors) = cardinality(ended_positions)
        and coalesce(cardinality(ended_sessions), cardinality(ended_positions)) = cardinality(ended_positions)
        and ended_kinds ~ case when wakes is null then '^[crfuxtb]*$' else '^[crfuxtws]*$' end
    )
    and (wakes is null or cardinality(wakes) between 1 and 100)
    and (of_slots is null or of_slots between 1 and 4294967295 and wakes is null)
    and (
      resumed is null
      or cardinality(resumed) between 1 and 100 and 0 < all (resumed) and me <> all (resumed) and wakes is null and of_slots is null
    )
  ) is not true then
    perform dibs.refuse_invalid_take(me, lease, want, wait, max_failures, hold, max_out, rate, burst, wakes, of_slots, resumed);
  end if;
  if others is not null then
    if (
      0 < all (others) and me <> all (others) and cardinality(others) = cardinality(other_wants) and 0 < all (other_wants) and want > 0
      and wakes is null and of_slots is null and resumed is null and want + (select sum(x.want) from unnest(other_wants) x (want)) <= 1000
    ) is not true then
      raise exception 'invalid others: must be other sessions that want at most 1000 items with this one, or null for a queue of streams or of parked messages or with resumed sessions'
        using errcode = 'DB001', column = 'others';
    end if;
    owners := array(select o.session from unnest(others, other_wants) with ordinality o (session, want, n), generate_series(1, o.want) order by o.n);
  end if;
  if of_slots is not null and not exists (
    select from dibs.queue_heads x
    where x.queue = (select y.id from dibs.queues y where y.name = queue_name and y.category = of_category and y.removed is null)
  ) then
    endings := repeat('l', cardinality(ended_positions)); -- no message was parked
    more := false;
    return;
  end if;
  q := dibs.queue_lock(queue_name, of_category, wakes is not null);
  select x.* into h from dibs.queue_heads x where x.queue = q order by x.version desc limit 1;
  now := clock_timestamp();
  if h.queue is null or wakes is not null then
    if exists (select from unnest(wakes) w (type) where dibs.valid_type(w.type) is not true) then
      raise exception 'invalid wakes: must be message types' using errcode = 'DB001', column = 'wakes';
    end if;
    if h.queue is null then
      perform dibs.refuse_removed_queue(q, queue_name);
      h := (q, 0, now, 0, 0, 0, 0, 'infinity', now, now, now, 0, false, null, 0, 0, 0, 0, false, null, false)::dibs.queue_heads;
    end if;
  end if;
  if (h.cursor = 4611686018427387904) <> (of_slots is not null) then
    raise exception 'invalid queue: must be a queue %', case when of_slots is null then 'that follows its category, and ' || queue_name || ' keeps parked messages' else 'of parked messages, and ' || queue_name || ' follows its category' end
      using errcode = 'DB001', column = 'queue_name';
  end if;
  if now < h.at - interval '1 s' then
    perform dibs.queue_set_back(q, of_category, h.at, now, wakes is not null);
    h.at := now;
    h.wake := least(h.wake, now);
    h.seen := least(h.seen, now - interval '1 s'); -- sessions are looked through in this call
    h.due := least(h.due, now);
    h.checked := least(h.checked, now);
    changed := true;
  end if;
  now := greatest(now, h.at);
  looks := now >= h.seen + interval '1 s';
  more := false;

  -- Held items that were worked on behind one that this call completes are taken, so that they end as it does. Others are told lost.
  if strpos(ended_kinds, 'b') > 0 then
    p := array(
      select u.position
      from unnest(ended_positions, ended_versions, string_to_array(ended_kinds, null)) u (position, version, kind)
      where u.kind = 'b' and u.version = 0
    );
    with recursive chain as (
      select y.position, null::tid as row
      from unnest(ended_positions, ended_versions, string_to_array(ended_kinds, null), ended_sessions) u (position, version, kind, session)
      cross join lateral (
        select z.position from dibs.queue_open z
        where z.queue = q and z.state = 'o' and z.position = u.position and z.version = u.version and z.session = coalesce(u.session, me)
        offset 0
      ) y
      where u.kind = 'c'
      union all
      select y.position, y.ctid
      from chain c
      cross join lateral (
        select z.position, z.ctid from dibs.queue_open z
        where z.queue = q and z.state = 'h' and z.after = c.position and z.version = 0 and z.position = any (p)
        offset 0
      ) y
    ), taken as (
      update dibs.queue_open x
      set state = case when h.linked then 'z' else 'o' end, session = case when not h.linked then me end, after = case when h.linked then x.after end, due = null
      where x.ctid = any (array(select c.row from chain c where c.row is not null))
      returning x.position
    )
    select coalesce(array_agg(y.position), '{}') into picked from taken y;
    h.held := h.held - case when h.linked then 0 else cardinality(picked) end;
    h.taken := h.taken + cardinality(picked);
    ended_versions := array(
      select case
        when u.kind = 'b' and u.position <> all (picked) and exists (select from dibs.queue_open z where z.queue = q and z.position = u.position and z.state <> 'z') then -1
        else u.version
      end
      from unnest(ended_positions, ended_versions, string_to_array(ended_kinds, null)) with ordinality u (position, version, kind, n)
      order by u.n
    );
    if ended_sessions is not null then
      ended_sessions := array(
        select case when u.kind = 'b' then me else u.session end
        from unnest(ended_sessions, string_to_array(ended_kinds, null)) with ordinality u (session, kind, n)
        order by u.n
      );
    end if;
    ended_kinds := translate(ended_kinds, 'b', 'c');
    picked := null;
  end if;

  -- Deliveries end.
  if cardinality(ended_positions) > 0 then
    endings := repeat('d', cardinality(ended_positions));
    if ended_kinds ~ '^c*$' and not h.linked then
      with done as (
        delete from dibs.queue_open x
        where x.ctid = any (array(
          select y.ctid
          from unnest(ended_positions, ended_versions, ended_sessions) u (position, version, session)
          cross join lateral (
            select z.ctid from dibs.queue_open z
            where z.queue = q and z.position = u.position and z.version = u.version and z.state = 'o' and z.session = coalesce(u.session, me)
            offset 0
          ) y
        ))
        returning x.position, x.version
      )
      select array_agg(y.position), array_agg(y.version) into gone, gone_versions from done y;
    else
      -- A row that a transaction of a caller's is finishing is passed over: the queue does not wait for it.
      with named as (
        select y.ctid, y.position, y.version, y.session, y.after, u.kind, u.delay, u.error, u.seen,
          u.kind = 'x' or u.kind = 'r' and y.failures + 1 >= max_failures as dies, u.kind in ('w', 's') as turned
        from unnest(ended_positions, ended_versions, string_to_array(ended_kinds, null), ended_delays, ended_errors, ended_seen, ended_sessions)
          u (position, version, kind, delay, error, seen, session)
        cross join lateral (
          select z.ctid, z.position, z.version, z.failures, z.session, z.after
          from dibs.queue_open z
          where z.queue = q and z.position = u.position and z.version = u.version and z.state = 'o' and z.session = coalesce(u.session, me)
          for update skip locked
        ) y
        where u.kind <> 't'
      ), done as (
        delete from dibs.queue_open x where x.ctid = any (array(select y.ctid from named y where y.kind = 'c' and y.after is null)) returning x.position, x.version
      ), kept as ( -- items are to go before what is behind them
        update dibs.queue_open x set state = 'z', session = null
        where x.ctid = any (array(select y.ctid from named y where y.kind = 'c' and y.after is not null)) returning x.position, x.version
      ), back as (
        update dibs.queue_open x
        set version = x.version + 1, session = null, ends = case when y.turned then 0 else x.ends end,
          after = case when x.after is not null then x.after when x.ends > 1 and not y.dies and not y.turned then 0 end,
          state = case when y.dies then dying when x.after is not null then 'h' when y.kind = 's' and (x.woken > coalesce(y.seen, 0)) is not true then 's' else 'l' end,
          failures = case when y.turned then 0 else least(x.failures + case when y.kind in ('r', 'x') then 1 else 0 end, 32767) end,
          given = now, due = case when not y.dies then now + case when y.turned and x.woken > coalesce(y.seen, 0) then 0 else greatest(y.delay, 0) end * interval '1 microsecond' end,
          error = case when y.kind in ('r', 'x', 's') then coalesce(y.error, x.error) when y.kind = 'w' then y.error else x.error end,
          woken = case when y.turned then greatest(x.woken, y.seen) else x.woken end
        from (select distinct on (z.ctid) z.* from named z where z.kind <> 'c') y
        where x.ctid = y.ctid
        returning x.position, y.version, y.session, y.kind, y.dies, x.due, y.error
      ), logged as (
        insert into dibs.queue_log (queue, position, version, what, at, session, text)
        select q, y.position, y.version, y.kind::"char", now, y.session, y.error from back y where y.kind not in ('w', 's')
        on conflict do nothing
      )
      select array_agg(y.position), array_agg(y.version), count(*) filter (where y.kind <> 'c' and not y.dies), count(*) filter (where y.dies),
        min(y.due)
      into gone, gone_versions, n, m, soon
      from (
        select x.position, x.version, 'c' as kind, false as dies, null::timestamptz as due from done x
        union all
        select x.position, x.version, 'c', false, null from kept x
        union all
        select x.position, x.version, x.kind, x.dies, x.due from back x
      ) y;
      h.returned := h.returned + n;
      h.buried := h.buried + m;
      h.wake := least(h.wake, soon);
    end if;
    changed := gone is not null;
    if coalesce(cardinality(gone), 0) < cardinality(ended_positions) then
      select string_agg(
        case
          when exists (select from unnest(gone, gone_versions) g (position, version) where g.position = u.position and g.version = u.version) then 'd'
          when exists (select from dibs.queue_log x where x.queue = q and x.position = u.position and x.version = u.version and x.session <> u.session) then 'l'
          else dibs.queue_ended(q, of_category, h.cursor, u.position, u.version, u.kind, wakes is not null)
        end, '' order by u.n)
      into endings
      from unnest(ended_positions, ended_versions, string_to_array(ended_kinds, null), ended_sessions) with ordinality u (position, version, kind, session, n);
    end if;
  end if;

  -- Sessions end.
  if now >= h.wake then
    with ended as (
      delete from dibs.queue_sessions x where x.queue = q and x.until >= h.seen - interval '1 s' and x.until <= now returning x.session
    )
    select array_agg(x.session) into over from ended x;
    if over is not null then
      with named as (
        -- Of several nobody knows which ended it: then it is a failure of none. It is one of an item that had it alone, and so are
        -- the ends before.
        select y.*, y.alone and y.failed >= max_failures as dies
        from (
          select x.ctid, x.position, x.version, x.session, count(*) over (partition by x.session) = 1 as alone,
            least(greatest(x.failures, x.ends) + 1, 32767) as failed
          from dibs.queue_open x
          where x.ctid = any ((select dibs.queue_out(q, wakes is not null, h.floor, over))::tid[])
        ) y
      ), back as (
        update dibs.queue_open x
        set version = x.version + 1, session = null, failures = case when y.alone then y.failed else x.failures end, ends = least(x.ends + 1, 32767),
          error = 'its session was over', state = case when y.dies then dying when x.after is not null then 'h' else 'l' end,
          after = case when x.after is not null then x.after when x.ends > 0 and not y.dies then 0 end,
          given = now, due = case when not y.dies then
            now + case when x.ends = 0 then 0 else least(power(2, least(x.ends, 12)), 3600) end * interval '1 s'
          end
        from named y
        where x.ctid = y.ctid
        returning x.position, y.version, y.session, y.dies, x.due, x.ends
      ), logged as (
        insert into dibs.queue_log (queue, position, version, what, at, session)
        select q, y.position, y.version, 'e', now, y.session from back y
        on conflict do nothing
      )
      select array_agg(y.position), count(*) filter (where not y.dies), count(*) filter (where y.dies), min(y.due), h.suspects or coalesce(bool_or(y.ends > 1), false)
      into p, n, m, soon, h.suspects from back y;
      h.returned := h.returned + n;
      h.buried := h.buried + m;
      h.wake := least(h.wake, soon);
      gone := case when gone is null then p else gone || p end;
      changed := true;
      if wakes is null then -- what a transaction of a caller's is finishing is looked at again
        insert into dibs.queue_sessions (queue, session, until, lasts)
        select distinct q, x.session, now + interval '1 s', interval '1 s'
        from dibs.queue_open x
        where x.queue = q and x.position >= h.floor and x.state = 'o' and x.session = any (over)
        on conflict do nothing;
      end if;
      h.seen := now;
    end if;
    if wakes is not null then -- suspended, and their time has come
      update dibs.queue_open x set state = 'l', due = greatest(x.due, h.due)
      where x.ctid = any (array(
        select y.ctid from dibs.queue_open y
        where y.queue = q and y.state = 's' and y.after is null and y.due <= now
        order by y.after, y.due, y.position
        limit 10000
      ));
      changed := changed or found;
    end if;
  end if;

  -- A session was extended while the clock was ahead: it has its lease from now on. Its process may be gone.
  if looks then
    update dibs.queue_sessions x set until = now + x.lasts where x.queue = q and x.until > now + x.lasts + interval '1 s';
    if found then
      h.wake := least(h.wake, now);
      changed := true;
    end if;
    h.seen := now;
  end if;

  -- What was held behind them is let go.
  if h.held > 0 and (h.linked or exists (select from dibs.queue_open x where x.queue = q and x.state = 'z')) then
    select x.* into let from dibs.queue_release(q, ended_positions || gone, now) x;
    h.held := h.held - let.n;
    h.wake := least(h.wake, let.soon);
    h.suspects := h.suspects or let.suspects;
    h.linked := h.linked and h.held > 0;
    changed := changed or let.n > 0;
  elsif h.held > 0 and (cardinality(ended_positions) > 0 or gone is not null) then
    with behind as (
      select y.ctid, y.position, y.due
      from (select distinct g.position from unnest(ended_positions || gone) g (position)) g
      cross join lateral (
        select x.ctid, x.position, x.due from dibs.queue_open x where x.queue = q and x.state = 'h' and x.after = g.position offset 0
      ) y
      where not exists (select from dibs.queue_open x where x.queue = q and x.position = g.position and x.state <> 'd' offset 0)
    ), later as (
      update dibs.queue_open x set state = 'l', after = null
      where x.ctid = any (array(select b.ctid from behind b where b.due > now))
      returning x.due
    )
    select (select array_agg(b.position order by b.position) from behind b where (b.due > now) is not true), count(*), min(x.due)
    into freed, n, soon
    from later x;
    h.held := h.held - n;
    h.wake := least(h.wake, soon);
    changed := changed or n > 0 or freed is not null;
  end if;

  total := want + coalesce(cardinality(owners), 0);
  if h.held > 0 and total > 0 and h.checked <= now - dibs.queue_pause(h.held) then
    -- Behind one that was finished by a caller who could not report it, or whose message was removed.
    select x.* into let
    from dibs.queue_release(q, array(
      select distinct y.after
      from dibs.queue_open y
      where y.queue = q and y.state = any ('{h,z,d,k,s}'::"char"[]) and y.after is not null and y.position <> all (coalesce(freed, '{}'))
        and (y.after = y.position or not exists (
          select from dibs.queue_open b where b.queue = q and b.position = y.after and (b.state <> 'd' or b.after is not null) offset 0
        ))
    ), now) x;
    h.held := h.held - let.n;
    h.wake := least(h.wake, let.soon);
    h.suspects := h.suspects or let.suspects;
    h.checked := now;
    changed := true;
    if h.linked then
      h.linked := exists (
        select from dibs.queue_open x
        where x.queue = q and (
          x.after = x.position or x.state = any ('{z,d,k,s}'::"char"[]) and x.after is not null
          or x.state = 'h' and (
            x.after > x.position
            or exists (select from dibs.queue_open y where y.queue = q and y.state = 'h' and y.after = x.after and y.position <> x.position offset 0)
          )
        )
      );
    end if;
  end if;

  -- Bounds.
  if h.paused then
    total := 0;
  end if;
  if total > 0 and max_out is not null then
    select greatest(0, max_out - count(*)) into low
    from dibs.queue_open x where x.queue = q and x.position >= h.floor and x.state = 'o';
    total := least(total, low);
    bounded := total = 0; -- until one of them ends
  end if;
  if rate is not null then -- also where none is wanted: the head's time goes on
    h.tokens := coalesce(least(burst, h.tokens + rate * extract(epoch from now - h.at)::double precision), burst);
    if total > 0 and h.tokens < 1 then
      again := now + (1 - h.tokens) / rate * interval '1 s';
      bounded := true;
    end if;
    total := least(total, floor(h.tokens));
  end if;

  -- What earlier attempts at the call have out moves here, and nothing else is reserved.
  if resumed is not null then
    with moved as (
      update dibs.queue_open x set session = me where x.ctid = any ((select dibs.queue_out(q, false, h.floor, resumed))::tid[]) returning x.position
    )
    select array_agg(x.position order by x.position) into picked from moved x;
    delete from dibs.queue_sessions x
    where x.queue = q and x.session = any (resumed) and not exists ( -- what a transaction of a caller's is finishing stays
      select from dibs.queue_open y where y.queue = q and y.position >= h.floor and y.state = 'o' and y.session = x.session offset 0
    );
    delete from dibs.queue_tickets x where x.queue = q and x.ticket > h.turn and x.session = any (resumed);
    if picked is not null then
      h.taken := h.taken - cardinality(picked); -- each was counted before, and is counted again
      moved := true;
      total := 0;
    end if;
  end if;

  -- What may have ended its session.
  if h.suspects and total > 0 then
    select x.* into alone from dibs.queue_alone(q, of_category, wakes is not null, of_slots, h.floor, me, now, h.apart) x;
    changed := changed or alone.taken is not null or alone.apart is distinct from h.apart or not alone.suspects;
    h.apart := alone.apart;
    h.suspects := alone.suspects;
    again := least(again, alone.soon);
    if alone.taken is not null then
      picked := array[alone.taken];
      total := 0;
    elsif alone.waits then
      total := 0;
      bounded := true; -- until what it has out ends
    end if;
  end if;

  -- First come, first served.
  if total > want then
    if exists (select from dibs.queue_tickets x where x.queue = q and x.ticket > h.turn and x.session <> me and x.until > now) then
      total := want;
    end if;
  end if;
  if total > 0 then
    select coalesce(sum(y.want), 0) into kept
    from (
      select x.want
      from dibs.queue_tickets x
      where x.queue = q and x.ticket > h.turn and x.ticket < coalesce(own_ticket, end_of_time) and x.session <> me and x.until > now
    ) y;
    if kept > 0 then
      select count(*), min(y.at) into n, soon
      from (
        (
          select x.due as at from dibs.queue_open x
          where x.queue = q and x.state = 'l' and x.after is null and x.due >= h.due and x.due <= now
          order by x.after, x.due limit kept + total
        )
        union all
        ( -- a time to come is of a clock that was ahead: nobody knows for how long that message has waited
          select case when x.time > now then now - 2 * patience else x.time end
          from dibs.messages x where x.category = of_category and x.global_position > h.cursor order by x.global_position limit kept + total
        )
        union all
        select now from unnest(freed)
      ) y;
      if soon < now - patience then
        delete from dibs.queue_tickets x
        where x.queue = q and x.ticket > h.turn and x.ticket < coalesce(own_ticket, end_of_time) and x.session <> me;
        changed := true;
      else
        total := greatest(0, least(total, n - kept));
        again := soon + patience;
        bounded := total = 0;
      end if;
    end if;
  end if;

  -- One delivery in eight is of what nobody has met, and of another key than the last: else a key that is never done would have every
  -- place. While much is held it is one in two, since a take looks at a part of it only.
  turns := total > 0 and wakes is null and h.taken % case when h.held < 2500 then 8 else 2 end = case when h.held < 2500 then 7 else 1 end;
  if turns and (
    freed is not null
    or exists (select from dibs.queue_open x where x.queue = q and x.state = 'l' and x.after is null and x.due >= h.due and x.due <= now)
  ) then
    if exists (select from dibs.fences x where x.category = of_category and x.shared) then
      up_to := dibs.readable(of_category);
    end if;
    newer := case
      when exists (
        select from dibs.messages x where x.category = of_category and x.global_position > h.cursor and x.global_position <= coalesce(up_to, end_of_time)
      ) then 1
      else 0
    end;
    total := total - newer;
    more := more or newer > 0;
  end if;

  -- What is due, and what was let go just now, which is due from now on.
  due_now := total > 0 and now >= h.wake;
  if due_now or total > 0 and freed is not null then
    with due as (
      (
        select x.ctid, x.position, x.due
        from dibs.queue_open x
        where due_now and x.queue = q and x.state = 'l' and x.after is null and x.due >= h.due and x.due <= now
          and (of_slots is null or dibs.of_slots(of_category, x.position, of_slots))
        order by x.after, x.due, x.position
        limit total
      )
      union all
      select y.ctid, u.position, now
      from unnest(freed) u (position)
      cross join lateral (select z.ctid from dibs.queue_open z where z.queue = q and z.position = u.position offset 0) y
    ), first as (
      select x.* from due x order by x.due, x.position limit total
    ), taken as (
      update dibs.queue_open x
      set state = 'o', session = me, due = null, after = null, woken = case when wakes is not null then coalesce(x.woken, 0) end
      where x.ctid = any (array(select y.ctid from first y)) returning 1
    )
    select array_agg(y.position order by y.due, y.position), max(y.due) into picked, soon from first y where exists (select from taken);
    n := coalesce(cardinality(picked), 0);
    if due_now and n > 0 and of_slots is null then
      h.due := case when n = total then soon else now end;
    end if;
    more := more or n > 0 and n = total;
    total := total - n;
    n := coalesce(cardinality(freed), 0);
    freed := array(select u.position from unnest(freed) u (position) where u.position <> all (coalesce(picked, '{}')));
    h.held := h.held - n + cardinality(freed);
  end if;
  if of_slots is not null and total > 0 and exists (
    select from dibs.queue_open x where x.queue = q and x.state = 'l' and x.after is null and x.due <= now and x.position <> all (coalesce(picked, '{}'))
  ) then -- of other slots: whoever has them takes them
    again := now + interval '1 s';
    bounded := true;
  end if;
  -- One test, since each costs a take of items: in a queue of streams nothing is held.
  if wakes is not null or cardinality(freed) > 0 then
    if wakes is null then
      update dibs.queue_open x set state = 'l', after = null, due = now, given = now
      where x.ctid = any (array(
        select y.ctid
        from unnest(freed) u (position)
        cross join lateral (select z.ctid from dibs.queue_open z where z.queue = q and z.position = u.position offset 0) y
      ));
      h.held := h.held - cardinality(freed);
      h.wake := least(h.wake, now);
      more := true;
    elsif total > 0 then
      for round in 1 .. 8 loop
        select x.offered, x.high, x.more, x.soon into p, high, full_page, soon from dibs.queue_meet(q, of_category, me, now, h.cursor, h.ahead, total, wakes) x;
        exit when high is null;
        changed := true;
        h.cursor := greatest(h.cursor, high);
        h.wake := least(h.wake, soon);
        picked := picked || p;
        total := total - coalesce(cardinality(p), 0);
        more := more or total = 0 or full_page and round = 8;
        exit when total = 0 or not full_page;
      end loop;
    end if;
  end if;

  if picked is not null then
    select array_agg(y.position), array_agg(y.version), array_agg(y.failures),
      array_agg(y.id), array_agg(y.stream_name), array_agg(y.stream_position), array_agg(y.type), array_agg(y.data), array_agg(y.metadata), array_agg(y.at)
    into positions, versions, failures, ids, streams, stream_positions, types, data, metadata, times
    from (
      select u.position, x.version, x.failures::integer as failures, y.id, y.stream_name, y.position as stream_position, y.type,
        y.data::text as data, y.metadata::text as metadata, dibs.microseconds(y.time) as at
      from unnest(picked) with ordinality u (position, n)
      cross join lateral (select z.version, z.failures from dibs.queue_open z where z.queue = q and z.position = u.position offset 0) x
      cross join lateral (select z.* from dibs.messages z where z.category = of_category and z.global_position = u.position offset 0) y
      order by u.n
    ) y;
    n := coalesce(cardinality(positions), 0);
    if n < cardinality(picked) then -- their messages were removed
      with lost as (
        delete from dibs.queue_open x
        where x.queue = q and x.position = any (picked) and x.position <> all (coalesce(positions, '{}'))
        returning x.position, x.version
      )
      insert into dibs.queue_log (queue, position, version, what, at) select q, x.position, x.version, 'M', now from lost x on conflict do nothing;
      h.taken := h.taken + cardinality(picked) - n;
      changed := true;
      more := true;
    end if;
  end if;

  -- Messages behind the cursor's place, in pages.
  total := total + newer;
  if total > 0 and wakes is null then
    if exists (select from dibs.fences x where x.category = of_category and x.shared) then
      up_to := dibs.readable(of_category);
    end if;
    for round in 1 .. 8 loop
      low := h.cursor;
      skipped := '{}';
      if h.ahead > low then
        skipped := array(select x.position from dibs.queue_log x where x.queue = q and x.position > low and x.position <= h.ahead and x.what = 'C');
      end if;
      if round <= 3 then -- else what is next is held, and there may be much of it
        with page as (
          select x.* from dibs.messages x
          where x.category = of_category and x.global_position > low and x.global_position <= coalesce(up_to, end_of_time)
            and (up_to is not null or not exists (select from dibs.fences f where f.category = of_category and f.shared))
          order by x.global_position
          limit total
        ), placed as (
          select x.*, b.before, y.due,
            case
              when x.global_position = any (skipped) then 'z' when b.before is not null then 'h' when y.due > now then 'l'
              when turns and round = 1 and x.position > 0 and exists (
                select from dibs.messages z where z.stream_name = x.stream_name and z.position = x.position - 1 and z.global_position = low offset 0
              ) then 'a'
              else 'o'
            end as state
          from page x
          left join lateral (
            select z.global_position as before
            from dibs.messages z
            where x.position > 0 and z.stream_name = x.stream_name and z.position = x.position - 1
              and z.type <> 'dibs:Tombstone'
              and (z.global_position > low or exists (
                select from dibs.queue_open b where b.queue = q and b.position = z.global_position and (b.state <> 'd' or b.after is not null) offset 0
              ))
            offset 0
          ) b on true
          cross join lateral (select case when strpos(x.metadata::text, '"dueAt"') > 0 then dibs.queue_due(x.metadata) end as due) y
          where x.type <> 'dibs:Tombstone'
        ), opened as (
          insert into dibs.queue_open (queue, position, state, session, due, given, after)
          select q, x.global_position, (case x.state when 'a' then 'l' else x.state end)::"char", case when x.state = 'o' then me end,
            case x.state when 'l' then x.due when 'h' then x.due when 'a' then now end, case x.state when 'a' then now end,
            case when x.state = 'z' then coalesce(x.before, x.global_position) else x.before end
          from placed x
        )
        select array_agg(x.global_position) filter (where x.state = 'o'), array_agg(x.id) filter (where x.state = 'o'),
          array_agg(x.stream_name) filter (where x.state = 'o'), array_agg(x.position) filter (where x.state = 'o'),
          array_agg(x.type) filter (where x.state = 'o'), array_agg(x.data::text) filter (where x.state = 'o'),
          array_agg(x.metadata::text) filter (where x.state = 'o'), array_agg(dibs.microseconds(x.time)) filter (where x.state = 'o'),
          count(*) filter (where x.state in ('h', 'z')), min(case x.state when 'l' then x.due when 'a' then now end),
          coalesce(aside, min(x.global_position) filter (where x.state = 'a')),
          (select max(y.global_position) from page y), (select count(*) = total from page y)
        into p, i, s, o, t, d, e, at, l, soon, aside, high, full_page
        from placed x;
      else
        select x.* into p, i, s, o, t, d, e, at, l, soon, high, full_page
        from dibs.queue_ahead(q, of_category, me, now, low, up_to, total, greatest(total, case round when 4 then 200 when 5 then 1000 else 2500 end), skipped) x;
      end if;
      exit when high is null;
      changed := true;
      h.cursor := high;
      h.held := h.held + l;
      h.wake := least(h.wake, soon);
      if skipped <> '{}' then
        select x.* into let from dibs.queue_release(q, skipped, now) x;
        h.held := h.held - let.n;
        h.wake := least(h.wake, now);
        more := true;
      end if;
      n := coalesce(cardinality(p), 0);
      if n > 0 then
        positions := positions || p;
        versions := versions || array_fill(0, array[n]);
        failures := failures || array_fill(0, array[n]);
        ids := ids || i;
        streams := streams || s;
        stream_positions := stream_positions || o;
        types := types || t;
        data := data || d;
        metadata := metadata || e;
        times := times || at;
      end if;
      total := total - n;
      more := more or full_page and (round = 8 or total = 0);
      exit when total = 0 or not full_page;
    end loop;
    if aside is not null and total > 0 then -- there is no other
      update dibs.queue_open x set state = 'o', session = me, due = null where x.queue = q and x.position = aside;
      select positions || x.global_position, versions || 0, failures || 0, ids || x.id, streams || x.stream_name, stream_positions || x.position, types || x.type,
        queue_take.data || x.data::text, queue_take.metadata || x.metadata::text, times || dibs.microseconds(x.time)
      into positions, versions, failures, ids, streams, stream_positions, types, data, metadata, times
      from dibs.messages x
      where x.category = of_category and x.global_position = aside;
    end if;
  end if;

  n := coalesce(cardinality(positions), 0);
  if owners is not null and n > want then
    update dibs.queue_open x set session = y.session
    from (
      select z.ctid, u.session
      from unnest(positions[want + 1:], owners) u (position, session)
      cross join lateral (select z.ctid from dibs.queue_open z where z.queue = q and z.position = u.position offset 0) z
    ) y
    where x.ctid = y.ctid;
    insert into dibs.queue_sessions as x (queue, session, until, lasts)
    select q, o.session, now + lease * interval '1 microsecond', lease * interval '1 microsecond'
    from unnest(owners[:n - want]) o (session)
    group by o.session
    on conflict (queue, session) do update set until = excluded.until, lasts = excluded.lasts
    where x.until < now + lease * 0.67 * interval '1 microsecond';
  end if;
  if n > 0 then
    insert into dibs.queue_sessions as x (queue, session, until, lasts)
    values (q, me, now + lease * interval '1 microsecond', lease * interval '1 microsecond')
    on conflict (queue, session) do update set until = excluded.until, lasts = excluded.lasts
    where x.until < now + lease * 0.67 * interval '1 microsecond';
    h.wake := least(h.wake, now + lease * interval '1 microsecond');
    h.taken := h.taken + n;
    h.tokens := h.tokens - case when rate is null or moved then 0 else n end;
    changed := true;
    if own_ticket is not null then
      delete from dibs.queue_tickets x where x.queue = q and x.ticket = own_ticket;
    end if;
  elsif want > 0 and wait > 0 and own_ticket is null then
    delete from dibs.queue_tickets x where x.queue = q and x.until < now; -- their callers ask no more
    insert into dibs.queue_tickets (queue, session, want, until) values (q, me, want, now + wait * interval '1 microsecond')
    returning queue_tickets.ticket into ticket;
  end if;

  if now >= h.wake or changed and h.wake = 'infinity' then
    soon := coalesce(least(
      (select x.until from dibs.queue_sessions x where x.queue = q order by x.until limit 1),
      (select x.due from dibs.queue_open x where x.queue = q and x.state = 'l' and x.after is null and x.due >= h.due order by x.after, x.due limit 1)
    ), 'infinity');
    if wakes is not null then
      soon := least(soon, (select x.due from dibs.queue_open x where x.queue = q and x.state = 's' and x.after is null order by x.after, x.due limit 1));
    end if;
    changed := changed or soon <> h.wake;
    h.wake := soon;
  end if;
  if changed then
    if h.version % 16 = 0 then
      h.floor := coalesce((select x.position from dibs.queue_open x where x.queue = q and x.position >= h.floor order by x.position limit 1), h.cursor + 1);
      h.turn := coalesce((select x.ticket - 1 from dibs.queue_tickets x where x.queue = q and x.ticket > h.turn order by x.ticket limit 1), h.turn);
    end if;
    h.version := h.version + 1;
    h.at := now;
    insert into dibs.queue_heads select h.*;
    if h.version % 256 = 0 then
      delete from dibs.queue_heads x where x.queue = q and x.version > h.version - 1024 and x.version <= h.version - 512;
      delete from dibs.queue_tickets x where x.queue = q and x.until < now;
    end if;
  end if;
  soon := least(case when not bounded then nullif(h.wake, 'infinity') end, case when h.held > 0 then h.checked + dibs.queue_pause(h.held) end, again);
  if bounded and soon is null then
    soon := now + interval '1 s';
  end if;
  wake := case when soon is not null and not h.paused then greatest(0, dibs.microseconds(soon) - dibs.microseconds(now)) end;
end
$$;

comment on function dibs.queue_take(
  text, text, bigint, bigint,
  bigint[], integer[], text, bigint[], text[],
  integer, bigint, bigint,
  integer, boolean, integer, double precision, integer,
  bigint[], text[], bigint[],
  bigint, bigint[], bigint[], integer[]
) is
'In one step, ends deliveries, gives back what is out in sessions that are over, and reserves up to
want items for the session me. All times are in microseconds.

An ended delivery is a position and a version, a kind, a delay, and an error for the log. It is of
the session me, unless ended_sessions names another. Of a delivery that had ended before, the session
is compared only if it is named. The kinds are:
  c  completed
  r  failed
  f  deferred
  u  not worked on
  x  buried
  t  completed by queue_finish
  b  completed while it was held, with the item before it
  w  a stream waits; the messages up to a global position are seen
  s  a stream is suspended; the messages up to a global position are seen
In endings each delivery has a letter: d done, l lost, o still out.

With wakes it is a queue of streams: an item is the first message of a stream, and later messages of
these types in the stream wake it. With of_slots it is a queue of parked messages, which queue_park
fills, and the take reserves items of these slots only: each is a bit.

The sessions others get items beyond want, in their order, each up to its number in other_wants.
What the sessions resumed have out moves to the session me; then nothing else is reserved.

A take that waits and finds nothing gets a ticket, its place in the line, and gives it again as
own_ticket. The result wake says after how long there may be something without a write; null means
never.';

grant execute on function dibs.queue_take to dibs_worker;
