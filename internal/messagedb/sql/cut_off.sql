-- Roles and objects that would no longer find message-db once its schema is put aside and
-- another has its name.
with holder as (
  select a.grantee as role, false as owns
  from pg_namespace n
  cross join aclexplode(n.nspacl) a
  where n.nspname = 'message_store' and a.privilege_type = 'USAGE' and a.grantee <> n.nspowner
  union
  -- The owner, if services may log in as it.
  select r.oid, true
  from pg_namespace n
  join pg_roles r on r.oid = n.nspowner
  where n.nspname = 'message_store' and r.rolcanlogin and r.rolname <> session_user
)
select case when h.role = 0
    then 'roles with rights in the schema message_store by PUBLIC lose them: grant message_store to the roles that use it, and revoke usage on schema message_store from public'
    else format('role %I loses its rights in the schema message_store: grant message_store to %1$I', pg_get_userbyid(h.role)) end as text
from holder h
where h.role = 0
  or not (
    h.role = coalesce(to_regrole('message_store')::oid, 0)
    or coalesce((select r.rolsuper from pg_roles r where r.oid = h.role), false)
    or to_regrole('message_store') is not null and pg_has_role(h.role, to_regrole('message_store'), 'usage')
    or h.owns and to_regrole('dibs_owner') is not null and pg_has_role(h.role, to_regrole('dibs_owner'), 'usage')
  )
union all
select format('subscription %s writes to the old table', s.subname)
from pg_subscription_rel r
join pg_subscription s on s.oid = r.srsubid
where r.srrelid = 'message_store.messages'::regclass
union all
select format('extension %s is in the schema that is put aside: alter extension %1$I set schema public', e.extname)
from pg_extension e
where e.extnamespace = to_regnamespace('message_store')
order by 1
