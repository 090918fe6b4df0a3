with recursive ours (name, owns) as (
  values ('dibs_owner', true), ('dibs_reader', false), ('dibs_writer', false), ('dibs_worker', false), ('dibs_operator', false), ('dibs_admin', false),
    ('message_store', false)
), members (role, oid) as (
  select o.name, r.oid from ours o join pg_roles r on r.rolname = o.name
  union
  select m.role, a.member from members m join pg_auth_members a on a.roleid = m.oid
), logins as (
  select distinct m.role, r.oid, r.rolname as name, r.rolsuper as super
  from members m join pg_roles r on r.oid = m.oid where r.rolcanlogin
)
select o.name, case
    when r.oid is null then 'warn'
    when r.rolsuper or r.rolcreaterole or r.rolbypassrls or r.rolreplication or r.rolcreatedb or o.owns and r.rolcanlogin then 'fail'
    when o.owns and exists (select from logins l where l.role = o.name and not l.super) then 'warn'
    else 'ok'
  end,
  case
    when r.oid is null then o.name || ' does not exist'
    else o.name || coalesce(' may' || nullif(concat(
        case when r.rolsuper then ' do anything (superuser)' end, case when r.rolcreaterole then ' create roles' end,
        case when r.rolbypassrls then ' bypass row security' end, case when r.rolreplication then ' replicate' end,
        case when r.rolcreatedb then ' create databases' end, case when o.owns and r.rolcanlogin then ' log in' end), ''), '')
      || coalesce(': ' || (select string_agg(quote_ident(l.name), ', ' order by l.name) from logins l where l.role = o.name) || ' can log in with its rights',
        ': no user can log in with its rights')
  end,
  case
    when r.oid is null then 'no user has its rights: create role ' || o.name || ' nologin, then dibs migrate up'
    when r.rolsuper or r.rolcreaterole or r.rolbypassrls or r.rolreplication or r.rolcreatedb or o.owns and r.rolcanlogin
      then format('alter role %s nosuperuser nocreaterole nobypassrls noreplication nocreatedb%s', o.name, case when o.owns then ' nologin' else '' end)
    when o.owns and exists (select from logins l where l.role = o.name and not l.super)
      then 'its members can change and remove messages: only users that migrate should be members'
  end
from ours o
left join pg_roles r on r.rolname = o.name
where r.oid is not null or o.name <> 'message_store'
union all
select 'idle_in_transaction_session_timeout', case when t.value ~ '^0[a-z]*$' then 'warn' else 'ok' end,
  format('%s: idle_in_transaction_session_timeout is %s', quote_ident(t.name), t.value),
  case when t.value ~ '^0[a-z]*$'
    then format('a client that hangs in a transaction holds its category for ever: alter role %s set idle_in_transaction_session_timeout = ''15s''', quote_ident(t.name)) end
from (
  select distinct l.name, coalesce((
      select substr(c.setting, strpos(c.setting, '=') + 1)
      from pg_db_role_setting d
      cross join unnest(d.setconfig) c (setting)
      where c.setting like 'idle_in_transaction_session_timeout=%'
        and d.setrole in (l.oid, 0) and d.setdatabase in ((select oid from pg_database where datname = current_database()), 0)
      order by d.setrole = 0, d.setdatabase = 0
      limit 1
    ), (
      -- This session's own setting says nothing of others.
      select case when s.source in ('database', 'user', 'database user', 'client', 'session') then s.boot_val else s.reset_val end
      from pg_settings s where s.name = 'idle_in_transaction_session_timeout'
    )) as value
  from logins l
  where l.role in ('dibs_writer', 'dibs_worker', 'dibs_operator', 'dibs_admin', 'message_store') and not l.super
) t
