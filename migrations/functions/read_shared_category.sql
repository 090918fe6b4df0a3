-- A function by itself, since each of its statements has to see the commits before it.
create or replace function dibs.read_shared_category(
  category text, from_position bigint, max_messages integer, types text[], correlation text, group_size integer, group_member integer
)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz,
  more boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  up_to bigint := from_position - 1; -- unless there is something to read
begin
  if exists (select from dibs.messages m where m.category = read_shared_category.category and m.global_position >= from_position) then
    -- A reader has a position from the page before: all below is settled, and so it may look at the
    -- message there again.
    up_to := greatest(dibs.readable(category), from_position);
  end if;
  return query select * from dibs.read_category(category, from_position, max_messages, types, correlation, group_size, group_member, up_to);
end
$$;

comment on function dibs.read_shared_category(text, bigint, integer, text[], text, integer, integer) is
'read_category for one that is written to in callers'' transactions.';
