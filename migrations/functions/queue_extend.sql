-- Without the queue's lock: a session that is over by now is a row that is gone, or will be.
-- Notes are in the session's row, not the item's: a take passes over the end of an item whose row another has locked.
create or replace function dibs.queue_extend(
  queue_name text, of_category text, me bigint, lease bigint, has_positions bigint[], has_versions integer[], new_notes jsonb
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
begin
  if (me > 0 and lease between 10000 and 86400000000 and coalesce(cardinality(has_positions), 0) = coalesce(cardinality(has_versions), 0)) is not true then
    raise exception 'invalid session: must be more than 0, and the lease between 10 ms and 24 h, in microseconds' using errcode = 'DB001', column = 'me';
  end if;
  if new_notes is not null and (
    jsonb_typeof(new_notes) = 'object'
    and (select count(*) <= 1000 and coalesce(max(octet_length(n.value)), 0) <= 1024 from jsonb_each_text(new_notes) n)
  ) is not true then
    raise exception 'invalid notes: must be at most 1000, of at most 1024 bytes each' using errcode = 'DB001', column = 'new_notes';
  end if;
  update dibs.queue_sessions x
  set until = greatest(least(x.until, n.at + x.lasts), n.at + n.lasts), -- an end of a clock that was ahead does not count
    lasts = greatest(x.lasts, n.lasts), notes = coalesce(new_notes, x.notes)
  from (select clock_timestamp() as at, lease * interval '1 microsecond' as lasts) n
  where x.queue = q and x.session = me and x.until > n.at;
  if not found then
    return coalesce(has_positions, '{}');
  end if;
  return array(
    select u.position
    from unnest(has_positions, has_versions) u (position, version)
    where not exists (
      select from dibs.queue_open x
      where x.queue = q and x.position = u.position and x.version = u.version and x.state = 'o' and x.session = me
      offset 0 -- as in queue_take
    )
  );
end
$$;

comment on function dibs.queue_extend(text, text, bigint, bigint, bigint[], integer[], jsonb) is
'Has a session last for the lease, in microseconds, from now on, keeps its notes unless they are null, and returns the positions that are not out in it any more: all if it was over.';

grant execute on function dibs.queue_extend to dibs_worker;
