-- Each object of the schemas dibs and message_store, and the rights of each role to it.
-- $1 are the roles; the public's rights are said once, and not again for each role.
with spaces as (
  select oid, nspname from pg_namespace where nspname in ('dibs', 'message_store')
),
objects (object, kind, oid, privileges) as (
  select 'schema ' || nspname, 'schema', oid, array['usage', 'create'] from spaces
  union all
  select case c.relkind when 'S' then 'sequence ' when 'v' then 'view ' when 'm' then 'view ' else 'table ' end || s.nspname || '.' || c.relname,
    case c.relkind when 'S' then 'sequence' else 'table' end, c.oid,
    case c.relkind when 'S' then array['usage', 'select', 'update'] else array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger'] end
  from pg_class c join spaces s on s.oid = c.relnamespace
  where c.relkind not in ('i', 'I', 'c', 't')
  union all
  select 'function ' || s.nspname || '.' || p.proname, 'function', p.oid, array['execute']
  from pg_proc p join spaces s on s.oid = p.pronamespace
  union all
  select 'type ' || s.nspname || '.' || t.typname, 'type', t.oid, array['usage']
  from pg_type t join spaces s on s.oid = t.typnamespace
  where t.typtype in ('c', 'd', 'e', 'r')
  union all
  select 'column ' || s.nspname || '.' || c.relname || '.' || a.attname, 'column ' || a.attnum, c.oid, array['select', 'insert', 'update', 'references']
  from pg_class c
  join spaces s on s.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  where c.relkind in ('r', 'p', 'v', 'm', 'f')
  union all
  -- Other objects in a schema, such as operators, have no rights.
  select i.type || ' ' || i.identity, 'other', d.objid, array['usage']
  from pg_depend d
  join spaces s on d.refclassid = 'pg_namespace'::regclass and d.refobjid = s.oid
  cross join lateral pg_identify_object(d.classid, d.objid, 0) i
  where d.classid not in ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass)
  union all
  select 'role ' || rolname, 'role', oid, array['member']
  from pg_roles where rolname in ('dibs_owner', 'dibs_reader', 'dibs_writer', 'dibs_worker', 'dibs_operator', 'dibs_admin', 'message_store')
),
rights as (
  select o.object, r.role, p.privilege, r.n, p.n as nth,
    case
      when o.kind = 'schema' then has_schema_privilege(r.role, o.oid, p.privilege)
      when o.kind = 'table' then has_table_privilege(r.role, o.oid, p.privilege)
      when o.kind = 'sequence' then has_sequence_privilege(r.role, o.oid, p.privilege)
      when o.kind = 'function' then has_function_privilege(r.role, o.oid, p.privilege)
      when o.kind = 'type' then has_type_privilege(r.role, o.oid, p.privilege)
      when o.kind = 'other' or o.kind = 'role' and r.role = 'public' then false
      when o.kind = 'role' then r.role::regrole <> o.oid and pg_has_role(r.role, o.oid, p.privilege)
      -- Rights that come with the table are not told again.
      else has_column_privilege(r.role, o.oid, split_part(o.kind, ' ', 2)::smallint, p.privilege)
        and not has_table_privilege(r.role, o.oid, p.privilege)
    end as has
  from objects o
  cross join unnest('public'::text || $1::text[]) with ordinality r (role, n)
  cross join lateral (
    select * from unnest(o.privileges) with ordinality u (privilege, n)
    union all
    select privilege || ' with grant option', 100 + n from unnest(o.privileges) with ordinality u (privilege, n) where o.kind <> 'role'
  ) p
)
select object, coalesce(string_agg(role || ' ' || privileges, ', ' order by n), 'nobody')
from (
  select r.object, r.role, r.n, string_agg(r.privilege, '+' order by r.nth) filter (where r.has and (r.n = 1 or not r.public)) as privileges
  from (
    select rights.*, bool_or(has and n = 1) over (partition by object, privilege) as public from rights
  ) r
  group by r.object, r.role, r.n
) of_role
group by object
order by object collate "C"
