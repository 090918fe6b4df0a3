-- Settings that a role or the database has of its own, and that hold for a login of the store's: this session's settings say nothing of
-- them. Of several the most special counts, as in the server. $1 is the setting by which drivers take an unsafe server.
with recursive members (role, oid) as (
  select r.rolname, r.oid from pg_roles r
  where r.rolname in ('dibs_reader', 'dibs_writer', 'dibs_worker', 'dibs_operator', 'dibs_admin', 'message_store')
  union
  select m.role, a.member from members m join pg_auth_members a on a.roleid = m.oid
), logins as (
  select r.oid, r.rolname as name, bool_or(m.role = 'message_store') as clients, bool_or(m.role not in ('dibs_reader', 'message_store')) as writes
  from members m join pg_roles r on r.oid = m.oid
  where r.rolcanlogin
  group by 1, 2
), effective as (
  select distinct on (l.oid, c.name) l.name as login, l.clients, l.writes, c.name, c.value,
    case when d.setrole <> 0 then format('alter role %I', l.name) || case when d.setdatabase <> 0 then format(' in database %I', current_database()) else '' end
    when d.setdatabase <> 0 then format('alter database %I', current_database()) else 'alter role all' end as by
  from logins l
  join pg_db_role_setting d on d.setrole in (l.oid, 0) and d.setdatabase in ((select oid from pg_database where datname = current_database()), 0)
  cross join lateral (
    select split_part(s.text, '=', 1) as name, lower(substr(s.text, strpos(s.text, '=') + 1)) as value from unnest(d.setconfig) s (text)
  ) c
  order by l.oid, c.name, d.setrole = 0, d.setdatabase = 0
), judged as (
  select e.*, case
      when e.name = 'synchronous_commit' and e.value in ('off', 'false', 'no', '0') then 'a crash loses its last acknowledged messages, and drivers refuse the server'
      when e.name = 'client_encoding' and pg_char_to_encoding(e.value) <> pg_char_to_encoding('UTF8') then 'text is changed, and drivers refuse the server'
      when e.name = 'session_replication_role' and e.value <> 'origin' then 'no trigger keeps messages from being changed, or appends staged ones'
    end as fails, case
      when e.name = $1::text and e.value in ('on', 'true', 'yes', '1', 't', 'y') then 'its drivers take a server that may lose messages'
      when e.name = 'client_min_messages' and e.value in ('error', 'fatal', 'panic') then 'a wait for a standby that is cancelled goes unnoticed, and drivers refuse a server that waits'
      when e.name = 'default_transaction_read_only' and e.value in ('on', 'true', 'yes', '1', 't', 'y') and (e.writes or e.clients) then 'it cannot write'
    end as warns
  from effective e
)
select j.name, case when j.fails is not null then 'fail' else 'warn' end, format('%I: %s is %s: %s', j.login, j.name, j.value, coalesce(j.fails, j.warns)),
  format('%s reset %s', j.by, j.name)
from judged j
where j.fails is not null or j.warns is not null
union all
select 'lock_timeout', 'warn', format('%I: lock_timeout is 0', l.name),
  format('a client of message-db waits for a category for ever: alter role %I set lock_timeout = ''10s''', l.name)
from logins l
where l.clients and coalesce(
    (select e.value from effective e where e.login = l.name and e.name = 'lock_timeout'),
    (select case when s.source in ('database', 'user', 'database user', 'client', 'session') then s.boot_val else s.reset_val end from pg_settings s where s.name = 'lock_timeout')
  ) ~ '^0[a-z]*$'
