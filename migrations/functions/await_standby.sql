-- A writer whose wait for a standby was cancelled has written all the same, and here only. A
-- caller that answers with rows that it found must not vouch for that write: with a record of its
-- own in the log, its transaction waits for everything before it.
create or replace function dibs.await_standby() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('synchronous_standby_names') <> '' then
    perform pg_logical_emit_message(true, 'dibs', '');
  end if;
end
$$;

comment on function dibs.await_standby() is
'Has the commit of this transaction wait for the standby, if there is one to wait for, although it has written nothing.';
