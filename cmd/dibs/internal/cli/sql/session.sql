select current_setting('server_version_num')::integer, pg_backend_pid(),
  exists (
    select from pg_proc
    where pronamespace = to_regnamespace('dibs') and proname = 'schema_version' and pronargs = 0
  )
