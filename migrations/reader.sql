-- Whether dibs.migrations is there, the role that the session has, that of the owner if
-- the user may act as the owner, or else the same, and whether that one can read it.
select true, current_setting('role'), r.role,
  has_schema_privilege(r.reader, c.relnamespace, 'usage') and has_table_privilege(r.reader, c.oid, 'select')
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
  select pg_has_role(session_user, c.relowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end) as may
) m
cross join lateral (
  select case when m.may then pg_get_userbyid(c.relowner) else current_setting('role') end as role,
    case when m.may then pg_get_userbyid(c.relowner) else current_user end as reader
) r
where n.nspname = $1 and c.relname = 'migrations'
