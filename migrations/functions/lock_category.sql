create or replace function dibs.lock_category(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock(1684628083, dibs.lock_key(category));
end
$$;

comment on function dibs.lock_category(text) is
'Waits for every transaction that has written to the category, and holds off others, to the end of this one. A function that
adds a message to the category takes this lock first, and looks nothing up and draws no position before that: so positions
become visible in order, and a later statement sees all messages there are. To lock several categories, take them in the order
of their names with a dash behind, by bytes: order by category || ''-'' collate "C".';