with sessions as (
  select a.*, clock_timestamp() - a.xact_start as since, a.query = '<insufficient privilege>' as hidden
  from pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type is distinct from 'autovacuum worker'
), long as (
  select s.* from sessions s where s.since >= $1::float8 * interval '1 second'
)
select 'transaction', 'warn',
  format('process %s (%s, %s) has been in a transaction for %s, %s: %s', l.pid, l.usename, coalesce(nullif(l.application_name, ''), 'no application_name'),
    date_trunc('second', l.since), l.state, left(regexp_replace(l.query, '[[:space:]]+', ' ', 'g'), 60)),
  format('vacuum removes nothing that it could see; to end it: select pg_terminate_backend(%s)', l.pid)
from long l
union all
select 'transactions', 'ok', 'none has been open for long', null
where not exists (select from long)
union all
select 'sessions', 'hidden', format('the statements of %s of %s sessions are not visible to this user', count(*) filter (where s.hidden), count(*)),
  format('grant pg_monitor to %I', session_user)
from sessions s
having count(*) filter (where s.hidden) > 0
union all
select 'prepared transaction', case
    when exists (
      select from pg_locks t
      join pg_locks l on l.virtualtransaction = t.virtualtransaction and l.pid is null
      where t.pid is null and t.locktype = 'transactionid' and t.transactionid = p.transaction
        and l.locktype = 'advisory' and l.objsubid = 2 and l.classid in (1684628083, 1684628082)
    ) then 'fail'
    when clock_timestamp() - p.prepared >= $1::float8 * interval '1 second' then 'warn'
    else 'ok'
  end,
  format('%L of %s was prepared %s ago', p.gid, p.owner, date_trunc('second', clock_timestamp() - p.prepared)),
  format('it keeps its locks, through a restart too, until commit prepared %L or rollback prepared %L', p.gid, p.gid)
from pg_prepared_xacts p
where p.database = current_database()
union all
select 'superuser', 'warn', format('application %L logs in as a superuser, %s, in %s', s.application_name, string_agg(distinct s.usename, ' or '),
    case count(*) when 1 then '1 session' else count(*) || ' sessions' end),
  'to a superuser no right and no trigger is in the way: let the service log in as a member of dibs_worker or dibs_writer'
from sessions s
join pg_roles r on r.oid = s.usesysid and r.rolsuper
where s.application_name = 'dibs' or s.query like '%dibs.append(%'
group by s.application_name
