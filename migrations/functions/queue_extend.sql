-- Without the queue's lock: a session that is over by now is a row that is gone, or will be.
-- Notes are in the session's row, not the item's: a take passes over the end of an item whose row another has locked.
create or replace function dibs.queue_extend(
  queue_name text, of_category text, me bigint, lease bigint, has_positions bigint[], has_versions integer[], new_notes jsonb,
  has_sessions bigint[] default null
) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  q constant integer := (select x.id from dibs.queues x where x.name = queue_name and x.category = of_category);
  now constant timestamptz := clock_timestamp();
  asked constant interval := lease * interval '1 microsecond';
  one bigint;
  extended bigint[]; -- sessions
begin
  if (me > 0 and lease between 10000 and 86400000000 and coalesce(cardinality(has_positions), 0) = coalesce(cardinality(has_versions), 0)) is not true then
    raise exception 'invalid session: must be more than 0, and the lease between 10 ms and 24 h, in microseconds' using errcode = 'DB001', column = 'me';
  end if;
  if has_sessions is not null and (cardinality(has_sessions) between 1 and 1000 and cardinality(has_sessions) = cardinality(has_positions) and 0 < all (has_sessions)) is not true then
    raise exception 'invalid sessions: must be one for each position, 1 to 1000, each more than 0' using errcode = 'DB001', column = 'has_sessions';
  end if;
  if new_notes is not null and (
    jsonb_typeof(new_notes) = 'object'
    and (select count(*) <= 1000 and coalesce(max(octet_length(n.value)), 0) <= 1024 from jsonb_each_text(new_notes) n)
  ) is not true then
    raise exception 'invalid notes: must be at most 1000, of at most 1024 bytes each' using errcode = 'DB001', column = 'new_notes';
  end if;
  for one in select distinct s.session from unnest(has_sessions || me) s (session) order by s.session loop -- in one order, so that two calls do not wait for each other
    update dibs.queue_sessions x
    set until = greatest(least(x.until, now + x.lasts), now + asked), -- an end of a clock that was ahead does not count
      lasts = greatest(x.lasts, asked), notes = case when one = me then coalesce(new_notes, x.notes) else x.notes end
    where x.queue = q and x.session = one and x.until > now;
    if found then
      extended := extended || one;
    end if;
  end loop;
  if extended is null then
    return coalesce(has_positions, '{}');
  end if;
  return array(
    select u.position
    from unnest(has_positions, has_versions, has_sessions) u (position, version, session)
    where coalesce(u.session, me) <> all (extended) or not exists (
      select from dibs.queue_open x
      where x.queue = q and x.position = u.position and x.version = u.version and x.state = 'o' and x.session = coalesce(u.session, me)
      offset 0 -- as in queue_take
    )
  );
end
$$;

comment on function dibs.queue_extend(text, text, bigint, bigint, bigint[], integer[], jsonb, bigint[]) is
'Has sessions last for the lease, in microseconds, from now on: the session me, and those of the positions, unless has_sessions is null. Keeps the
notes of the session me unless they are null, and returns the positions that are not out in their session any more: all if it was over.';

grant execute on function dibs.queue_extend to dibs_worker;
