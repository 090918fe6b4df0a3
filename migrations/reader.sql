-- Whether dibs.migrations is there, the role that the session has, that of the owner if
-- the user may act as the owner, or else the same, and whether that one can read it. A
-- superuser reads it as such: whose policies it has can be nobody's then.
select true, current_setting('role'), r.role,
  has_schema_privilege(r.reader, c.relnamespace, 'usage') and has_table_privilege(r.reader, c.oid, 'select')
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
  select pg_has_role(session_user, c.relowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end) as may
) m
cross join lateral (
  select
    case when s.super then 'none' when m.may then pg_get_userbyid(c.relowner) else current_setting('role') end as role,
    case when s.super then session_user when m.may then pg_get_userbyid(c.relowner) else current_user end as reader
  from (select rolsuper as super from pg_roles where rolname = session_user) s
) r
where n.nspname = $1 and c.relname = 'migrations' and c.relkind = 'r'
