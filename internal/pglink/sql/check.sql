select
  pg_catalog.current_setting('fsync'),
  pg_catalog.current_setting('full_page_writes'),
  pg_catalog.current_setting('synchronous_commit'),
  pg_catalog.current_setting('synchronous_standby_names'),
  pg_catalog.current_setting('client_min_messages'),
  pg_catalog.current_setting('server_encoding'),
  pg_catalog.current_setting('client_encoding'),
  pg_catalog.pg_is_in_recovery(),
  coalesce(pg_catalog.current_setting($1, true), ''),
  pg_catalog.pg_backend_pid(),
  exists (
    select from pg_catalog.pg_proc
    where pronamespace = pg_catalog.to_regnamespace('dibs') and proname = 'schema_version' and pronargs = 0
  ),
  coalesce((
    select case
      when not pg_catalog.has_schema_privilege(n.oid, 'usage') then pg_catalog.concat('schema ', n.nspname)
      when not pg_catalog.has_function_privilege(p.oid, 'execute') then 'function schema_version'
    end
    from pg_catalog.pg_proc p
    join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where p.pronamespace = pg_catalog.to_regnamespace('dibs') and p.proname = 'schema_version' and p.pronargs = 0
  ), ''),
  exists (
    select from pg_catalog.pg_trigger t
    join pg_catalog.pg_class c on c.oid = t.tgrelid
    where c.relnamespace = pg_catalog.to_regnamespace('dibs') and c.relname = 'messages' and t.tgname = 'dibs_adoption_refuse_native'
  ),
  -- One large block, freed at once: glibc then keeps what the session frees, up to twice as much, for the next statement.
  pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat(' ', 1000), $2::integer))
