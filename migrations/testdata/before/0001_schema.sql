select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0001_schema.sql', true);

do $migration$
declare
  caller constant pg_catalog.text := pg_catalog.current_setting('role');
  path constant pg_catalog.text := pg_catalog.current_setting('search_path');
  may_become pg_catalog.text;
  role pg_catalog.text;
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
if current_setting('dibs.migration', true) is distinct from '0001_schema.sql' then
  raise exception '0001_schema.sql has to be applied in one transaction'
    using errcode = 'no_active_sql_transaction', hint = 'psql -X -1 -v ON_ERROR_STOP=1 -f 0001_schema.sql';
end if;
if to_regclass('dibs.migrations') is not null then
  raise exception '0001_schema.sql is applied already'
    using errcode = 'duplicate_object';
end if;
if current_setting('server_version_num')::integer < 140000 then
  raise exception 'Dibs needs PostgreSQL 14 or later, and this is %', current_setting('server_version')
    using errcode = 'feature_not_supported';
end if;
if current_setting('server_encoding') <> 'UTF8' then
  raise exception 'Dibs needs a database with encoding UTF8, and this one has %', current_setting('server_encoding')
    using errcode = 'feature_not_supported';
end if;

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

if exists (
  select from pg_namespace n
  where n.oid = to_regnamespace('dibs') and pg_get_userbyid(n.nspowner) not in (session_user, current_user, 'dibs_owner')
    and (select rolsuper from pg_roles where rolname = session_user)
) then
  raise exception 'the schema dibs is there already, and belongs to %',
      (select pg_get_userbyid(nspowner) from pg_namespace where oid = to_regnamespace('dibs'))
    using errcode = 'duplicate_schema', hint = 'All that is made here would be that user''s. Migrate as that user, or: alter schema dibs owner to dibs_owner';
elsif exists (
  select from pg_depend
  where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace('dibs') and classid <> 'pg_default_acl'::regclass
) then
  raise exception 'the schema dibs is there already, and is not empty'
    using errcode = 'duplicate_schema', hint = 'Find out whose it is, and rename or drop it.';
end if;

if to_regnamespace('dibs') is null then
  if to_regrole('dibs_owner') is not null and pg_has_role(session_user, 'dibs_owner', may_become) then
    create schema dibs authorization dibs_owner;
  else
    create schema dibs;
  end if;
end if;

perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs') and pg_has_role(session_user, nspowner, may_become);

create table dibs.migrations (
  name text collate "C" primary key,
  sha256 text not null,
  applied_at timestamptz not null default clock_timestamp()
);

comment on table dibs.migrations is
'What has been applied here, by the name of its file and the hash of what is in it above the statement that records it.';

create function dibs.begin_migration(name text, previous text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('dibs.migration', true) is distinct from name then
    raise exception '% has to be applied in one transaction', name
      using errcode = 'no_active_sql_transaction', hint = 'psql -X -1 -v ON_ERROR_STOP=1 -f ' || name;
  end if;
  if exists (select from dibs.migrations m where m.name = begin_migration.name) then
    raise exception '% is applied already', name
      using errcode = 'duplicate_object';
  end if;
  if not exists (select from dibs.migrations m where m.name = previous) then
    raise exception '% comes after %, which is not applied here', name, previous
      using errcode = 'object_not_in_prerequisite_state';
  end if;
end
$$;

create function dibs.revoke_defaults(space regnamespace) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  given record;
begin
  for given in
    select distinct o.kind, o.name, case e.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(e.grantee)) end as role
    from (
      select 'schema', 'n', space::text, nspowner, nspacl from pg_namespace where oid = space
      union all
      select case relkind when 'S' then 'sequence' else 'table' end, case relkind when 'S' then 'S' else 'r' end,
        oid::regclass::text, relowner, relacl
      from pg_class where relnamespace = space and relkind in ('r', 'p', 'v', 'm', 'f', 'S')
      union all
      select 'routine', 'f', oid::regprocedure::text, proowner, coalesce(proacl, acldefault('f', proowner)) from pg_proc where pronamespace = space
      union all
      select 'type', 'T', t.oid::regtype::text, t.typowner, t.typacl
      from pg_type t
      where t.typnamespace = space and t.typtype in ('c', 'd', 'e', 'r')
        and not exists (select from pg_class c where c.oid = t.typrelid and c.relkind <> 'c')
    ) o (kind, default_kind, name, owner, acl)
    cross join lateral aclexplode(o.acl) e
    where pg_get_userbyid(o.owner) = current_user and e.grantee <> o.owner
      and case when e.grantee = 0 then o.kind <> 'type' else exists (
        select from pg_default_acl d
        cross join lateral aclexplode(d.defaclacl) a
        where d.defaclrole = o.owner and d.defaclnamespace in (0, space)
          and d.defaclobjtype::text = o.default_kind and a.grantee = e.grantee
      ) end
  loop
    execute format('revoke all on %s %s from %s', given.kind, given.name, given.role);
  end loop;
end
$$;

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0001_schema.sql', 'da9b884c43a6a5ab403e7c42cd3f3915259d488179ebfdef0d500640436a2197');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
