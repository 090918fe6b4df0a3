-- Rows that were cancelled while they were held go with the item before them, and let go what is behind them.
create or replace function dibs.queue_pass(q integer, at timestamptz) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  passed bigint[];
  n integer;
  total integer := 0;
begin
  loop
    with gone as (
      delete from dibs.queue_open x
      where x.ctid = any (array(
        select y.ctid from dibs.queue_open y
        where y.queue = q and y.state = 'z' and not exists (
          select from dibs.queue_open b where b.queue = q and b.position = y.after and b.state <> 'd' offset 0
        )
      ))
      returning x.position
    )
    select array_agg(g.position) into passed from gone g;
    exit when passed is null;
    update dibs.queue_open x set state = 'l', after = null, due = greatest(x.due, at), given = at
    where x.queue = q and x.state = 'h' and x.after = any (passed);
    get diagnostics n = row_count;
    total := total + n + cardinality(passed);
  end loop;
  return total;
end
$$;

comment on function dibs.queue_pass(integer, timestamptz) is
'Ends the cancelled rows of a queue that are behind no open item, and returns how many rows are held no more.';
