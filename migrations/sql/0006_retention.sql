-- +goose Up
-- +goose StatementBegin
-- How messages are removed: a stream trimmed, or deleted behind a tombstone. Each
-- removal is recorded as a message.
select set_config('lock_timeout', coalesce(nullif(current_setting('dibs.lock_timeout', true), ''), '10s'), true),
  set_config('statement_timeout', coalesce(nullif(current_setting('dibs.statement_timeout', true), ''), '5min'), true),
  set_config('standard_conforming_strings', 'on', true),
  set_config('dibs.migration', '0006_retention.sql', true);

do $migration$
declare
  caller constant text := current_setting('role');
begin
perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs')
  and pg_has_role(session_user, nspowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end);
perform dibs.begin_migration('0006_retention.sql', '0005_read.sql');

revoke all on all tables in schema dibs from public;
revoke all on all functions in schema dibs from public;

insert into dibs.migrations (name, sha256)
values ('0006_retention.sql', 'd7ad4922e4e6f120b8d9749126f981e1c31c18a4c4c1ec99c1197439dead7ca2');

perform set_config('role', caller, true);
end
$migration$;
-- +goose StatementEnd
