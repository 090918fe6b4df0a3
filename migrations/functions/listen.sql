create or replace function dibs.listen() returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  perform pg_advisory_lock_shared(1684628076, 0); -- as dibs.listened says
  perform pg_advisory_lock(1684628076, 1);
  perform pg_advisory_unlock(1684628076, 1);
  listen dibs_messages;
end
$$;

comment on function dibs.listen() is
'Has this session hear on the channel dibs_messages of writes with notify, to its end. A write that it does not hear of can be
read when this call has been committed.';

grant execute on function dibs.listen to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
