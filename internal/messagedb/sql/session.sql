-- Overrides settings of the database, the role or the URL that would end the session,
-- change its answers, or weaken its last commit.
set application_name = 'dibs migrate adopt';
set search_path = pg_catalog, pg_temp;
set standard_conforming_strings = on;
set client_min_messages = warning;
set statement_timeout = 0;
set lock_timeout = 0;
set idle_in_transaction_session_timeout = 0;
set default_transaction_isolation = 'read committed';
set default_transaction_read_only = off;
set row_security = off;
set jit = off;
set dibs.adopting = 'on';
-- Those that not every release has, or that only have a least value.
select set_config(name, '0', false) from pg_settings where name in ('idle_session_timeout', 'transaction_timeout');
select set_config('work_mem', '64MB', false) where pg_size_bytes(current_setting('work_mem')) < 64 * 1024 * 1024;
select set_config('maintenance_work_mem', '256MB', false) where pg_size_bytes(current_setting('maintenance_work_mem')) < 256 * 1024 * 1024;
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off';
