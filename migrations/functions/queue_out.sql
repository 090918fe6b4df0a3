-- The rows that sessions have out. One that a transaction of a caller's is finishing is passed over; of a queue of streams none is.
create or replace function dibs.queue_out(q integer, of_streams boolean, low bigint, sessions bigint[]) returns tid[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
  if of_streams then
    return array(
      select x.ctid from dibs.queue_open x where x.queue = q and x.state = 'o' and x.woken is not null and x.session = any (sessions)
    );
  end if;
  return array(
    select x.ctid from dibs.queue_open x where x.queue = q and x.position >= low and x.state = 'o' and x.session = any (sessions)
    for update skip locked
  );
end
$$;

comment on function dibs.queue_out(integer, boolean, bigint, bigint[]) is
'Where the rows are that sessions have out, of a queue of streams or of items; of items those from a position on, locked.';
