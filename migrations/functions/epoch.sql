-- Of the log that the server writes, the name of each file begins with the timeline. In
-- recovery it writes none. A server may keep both from the owner, or be none of
-- PostgreSQL's own.
create or replace function dibs.epoch() returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  server text;
begin
  begin
    select concat(c.system_identifier, '/', case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end)
    into server
    from pg_control_system() c;
  exception
    when insufficient_privilege or undefined_function or feature_not_supported then
      server := '/';
  end;
  return concat(server, '/', (select concat(e.number, '.', e.id) from dibs.epochs e));
end
$$;

comment on function dibs.epoch() is
'The same for as long as no commit is lost, and sometimes another though none was: the server''s identifier, its timeline, and,
by number and id, the epoch that dibs.raise_epoch has raised. Without rights to ask for them, the first two are empty.';

grant execute on function dibs.epoch to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
