-- +goose Up
-- +goose StatementBegin
-- The schema, and who may do what in it.
--
-- dibs_owner owns all there is and cannot log in. Who is a member of dibs_writer
-- may call the functions that write and those that read; of dibs_reader, those
-- that read; of dibs_admin, those that read, report, trim and delete. Nobody has
-- rights on a table. The roles are the cluster's: several schemas and databases
-- share them. What each may do is in dibs.grant_rights, which comes last.
set local lock_timeout = '10s';

do $$
declare
  role text;
begin
  if current_setting('server_version_num')::integer < 140000 then
    raise exception 'Dibs needs PostgreSQL 14 or later, and this is %', current_setting('server_version')
      using errcode = 'feature_not_supported';
  end if;
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception 'Dibs needs a database with encoding UTF8, and this one has %', current_setting('server_encoding')
      using errcode = 'feature_not_supported';
  end if;

  -- Who may not make roles goes on without: all is then the migrating user's,
  -- who grants what others need.
  foreach role in array array['dibs_owner', 'dibs_writer', 'dibs_reader', 'dibs_admin'] loop
    continue when to_regrole(role) is not null;
    begin
      execute format('create role %I nologin', role);
    exception
      when duplicate_object or unique_violation then
        null; -- made just now, for another database
      when insufficient_privilege then
        raise notice 'role % does not exist and % may not create it', role, current_user;
    end;
  end loop;

  if to_regrole('dibs_owner') is not null and not pg_has_role(current_user, 'dibs_owner', 'member') then
    begin
      execute format('grant dibs_owner to %I', current_user);
    exception
      when unique_violation then
        null; -- granted just now, for another database
      when insufficient_privilege then
        raise notice '% may not act as dibs_owner', current_user;
    end;
  end if;

  if to_regnamespace('dibs') is null then
    if to_regrole('dibs_owner') is not null and pg_has_role(current_user, 'dibs_owner', 'member') then
      create schema dibs authorization dibs_owner;
    else
      create schema dibs;
    end if;
  end if;
end
$$;

-- What is made from here on belongs to the schema's owner. A schema that was made
-- beforehand, for a user who may only create in it, stays as it is.
select set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs') and pg_has_role(session_user, nspowner, 'member');

create table dibs.migrations (
  name text collate "C" primary key,
  sha256 text not null,
  applied_at timestamptz not null default clock_timestamp()
);

comment on table dibs.migrations is 'What has been applied here, by the name and the hash of its file.';

revoke all on schema dibs from public;
revoke all on all tables in schema dibs from public;
-- +goose StatementEnd
