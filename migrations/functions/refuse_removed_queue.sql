create or replace function dibs.refuse_removed_queue(q integer, queue_name text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
  if not exists (select from dibs.queues x where x.id = q and x.removed is null) then
    raise exception 'queue % was removed', queue_name using errcode = 'DB004';
  end if;
end
$$;

comment on function dibs.refuse_removed_queue(integer, text) is 'Raises DB004 for a queue that was removed.';
