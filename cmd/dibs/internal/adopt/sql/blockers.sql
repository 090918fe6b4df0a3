-- The sessions that hold up the session $1, oldest first. A prepared transaction has no
-- session: its pid is 0.
select b.pid, b.usename, b.application, b.state, b.since
from (
  select a.pid, coalesce(a.usename, a.backend_type, '') as usename, coalesce(a.application_name, '') as application, coalesce(a.state, 'active') as state,
    coalesce(a.xact_start, clock_timestamp()) as since
  from pg_stat_activity a
  where a.pid = any (pg_blocking_pids($1))
  union all
  select 0, p.owner::text, p.gid, 'prepared', p.prepared
  from pg_locks w
  join pg_locks l on l.pid is null and l.granted and l.locktype = w.locktype and l.database = w.database and l.relation = w.relation
  join pg_locks x on x.pid is null and x.locktype = 'transactionid' and x.virtualtransaction = l.virtualtransaction
  join pg_prepared_xacts p on p.transaction = x.transactionid
  where w.pid = $1 and not w.granted and 0 = any (pg_blocking_pids($1))
) b
order by b.since
limit 10
