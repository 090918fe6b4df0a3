-- +goose Up
-- +goose StatementBegin
-- How messages are removed: a stream trimmed, or deleted behind a tombstone. Each
-- removal is recorded as a message.
set local lock_timeout = '10s';

select set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs') and pg_has_role(session_user, nspowner, 'member');

revoke all on all tables in schema dibs from public;
revoke all on all functions in schema dibs from public;
-- +goose StatementEnd
