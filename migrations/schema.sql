-- Makes the roles, the schema, the table of installed files, and the function that installs a
-- file. It comes first each time, and leaves existing objects as they are.
--
-- dibs_owner owns everything and cannot log in. A member of dibs_reader may call the functions that
-- read; of dibs_writer those that read and write; of dibs_worker these and those by which a worker
-- takes the items of queues; of dibs_operator those of a writer, and the one that changes items and
-- pauses queues; of dibs_admin those that read, report, trim, delete, change and remove queues, and
-- raise the epoch. No role has rights on a table, and none is a member of another. Roles belong to
-- the server: its schemas and databases share them.
--
-- A statement waits 10 seconds for a lock and works for 5 minutes at most; the settings
-- dibs.lock_timeout and dibs.statement_timeout of the session change these bounds. The wait for
-- another migration has none.
--
-- Names are looked up in pg_catalog alone: the migrating user may be a superuser, and another user
-- may have left functions in public for a superuser to call.
select pg_catalog.set_config('dibs.caller_role', pg_catalog.current_setting('role'), true),
  pg_catalog.set_config('dibs.caller_path', pg_catalog.current_setting('search_path'), true),
  pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
  pg_catalog.set_config('lock_timeout', '0', true),
  pg_catalog.set_config('statement_timeout', '0', true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true);

select pg_catalog.pg_advisory_xact_lock(1684628077, pg_catalog.hashtext(pg_catalog.btrim('dibs', '"'))); -- "dibm" in ASCII

select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true);

do $schema$
declare
  may_become pg_catalog.text;
  role pg_catalog.text;
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
if coalesce(current_setting('dibs.caller_role', true), '') = '' then
  raise exception 'the migrations have to be applied in one transaction'
    using errcode = 'no_active_sql_transaction';
end if;
if current_setting('server_version_num')::integer < 150000 then
  raise exception 'Dibs needs PostgreSQL 15 or later, and this is %', current_setting('server_version')
    using errcode = 'feature_not_supported';
end if;
if current_setting('server_encoding') <> 'UTF8' then
  raise exception 'Dibs needs a database with encoding UTF8, and this one has %', current_setting('server_encoding')
    using errcode = 'feature_not_supported';
end if;

-- Making a role takes CREATEROLE. Without it the missing roles stay missing, and
-- everything belongs to the migrating user. dibs.grant_rights gives a role that is made
-- later its rights.
foreach role in array array['dibs_owner', 'dibs_writer', 'dibs_reader', 'dibs_worker', 'dibs_operator', 'dibs_admin'] loop
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

-- From PostgreSQL 16 on, the maker of a role may grant it, and may act as it only after
-- that grant.
may_become := case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end;
if to_regrole('dibs_owner') is not null and not pg_has_role(session_user, 'dibs_owner', may_become) then
  begin
    execute format('grant dibs_owner to %I', session_user);
  exception
    when unique_violation then
      null; -- granted just now, for another database
    when insufficient_privilege then
      raise notice '% may not act as dibs_owner', session_user;
  end;
end if;

-- Any user with CREATE on the database may have made the schema, as a trap for a
-- superuser.
if exists (
  select from pg_namespace n
  where n.oid = to_regnamespace('dibs') and pg_get_userbyid(n.nspowner) not in (session_user, current_user, 'dibs_owner')
    and (select rolsuper from pg_roles where rolname = session_user)
) then
  raise exception 'the schema dibs is there already, and belongs to %',
      (select pg_get_userbyid(nspowner) from pg_namespace where oid = to_regnamespace('dibs'))
    using errcode = 'duplicate_schema', hint = 'Everything that is made here would belong to that user. Migrate as that user, or: alter schema dibs owner to dibs_owner';
elsif to_regclass('dibs.migrations') is null and exists (
  select from pg_depend
  where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace('dibs') and classid <> 'pg_default_acl'::regclass
) then
  raise exception 'the schema dibs is there already, and is not empty'
    using errcode = 'duplicate_schema', hint = 'Find out which application it belongs to, and rename or drop it.';
end if;

if to_regnamespace('dibs') is null then
  if to_regrole('dibs_owner') is not null and pg_has_role(session_user, 'dibs_owner', may_become) then
    create schema dibs authorization dibs_owner;
  else
    create schema dibs;
  end if;
end if;

-- From here on everything belongs to the schema's owner. A schema that was made beforehand, for a
-- user with no right but to create in it, stays as it is.
perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs') and pg_has_role(session_user, nspowner, may_become);

if to_regclass('dibs.migrations') is null then
  create table dibs.migrations (
    name text collate "C" primary key,
    sha256 text not null,
    applied_at timestamptz not null default clock_timestamp(),
    version integer not null default 0,
    grants text[] not null default '{}'
  );
end if;
end
$schema$;

-- What 0001_messages.sql grants to the other roles.
grant usage on schema dibs to dibs_worker, dibs_operator;

comment on table dibs.migrations is
'The files that were installed here: the SHA-256 of each, the version of the schema that it came with, and the rights that it grants.';

create or replace function dibs.install(name text, sha256 text, version integer, grants text[], sql text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $install$
#variable_conflict use_column
declare
  found_hash text;
  found_version integer;
  found_grants text[];
  granted text;
begin
  select m.sha256, m.version, m.grants into found_hash, found_version, found_grants
  from dibs.migrations m where m.name = install.name;
  if found_version > install.version then
    raise exception '% is of a newer release, of version %, and this is version %', install.name, found_version, install.version
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  if found_hash = install.sha256 then
    return;
  end if;
  if found_hash is not null and install.name ~ '(^|/)tables/' then
    raise exception '% was changed after it was applied', install.name
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  foreach granted in array coalesce(found_grants, '{}') loop
    if to_regrole(substring(granted from ' to ([^ ]+)$')) is not null then
      execute regexp_replace(granted, '^grant (.*) to ([^ ]+)$', 'revoke \1 from \2');
    end if;
  end loop;
  execute install.sql;
  insert into dibs.migrations (name, sha256, version, grants)
  values (install.name, install.sha256, install.version, install.grants)
  on conflict on constraint migrations_pkey do update
  set sha256 = excluded.sha256, applied_at = excluded.applied_at, version = excluded.version, grants = excluded.grants;
end
$install$;

comment on function dibs.install(text, text, integer, text[], text) is
'Runs a file, unless it was run with this hash before, and records it. The rights that the file granted before are revoked first;
dibs.grant_rights grants the new ones.';

create or replace function dibs.uninstall(part text, space text, files text[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $uninstall$
declare
  views text;
  functions text;
begin
  select string_agg(o.name, ', ') filter (where c.relkind = 'v'), string_agg(o.name, ', ') filter (where c.relkind is null)
  into views, functions
  from dibs.migrations m
  cross join lateral (select regexp_replace(m.name, '^.*/|[.]sql$', '', 'g') as name) f
  cross join lateral (select case when strpos(f.name, '.') > 0 then f.name else quote_ident(btrim(space, '"')) || '.' || f.name end as name) o
  left join pg_class c on c.oid = to_regclass(o.name)
  where starts_with(m.name, part || 'functions/') and m.name <> all (files);
  if views is not null then
    execute 'drop view if exists ' || views;
  end if;
  if functions is not null then
    execute 'drop function if exists ' || functions;
  end if;
  delete from dibs.migrations m where starts_with(m.name, part || 'functions/') and m.name <> all (files);
end
$uninstall$;

comment on function dibs.uninstall(text, text, text[]) is
'Drops the functions and views of a part whose files are gone: a file has the name of its function or view.';