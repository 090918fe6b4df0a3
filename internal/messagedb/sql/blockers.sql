-- The sessions but $1 that hold locks of the tables $2 which conflict with the mode $3, oldest
-- first. A prepared transaction has no session: its pid is 0.
with held as (
  select l.pid, l.virtualtransaction
  from pg_locks l
  where l.locktype = 'relation' and l.granted
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.relation in (select to_regclass(t.name) from unnest($2::text[]) t (name))
    and ($3::text = 'access exclusive' or l.mode not in ('AccessShareLock', 'RowShareLock'))
)
select b.pid, b.usename, b.application, b.state, b.since
from (
  select a.pid, coalesce(a.usename, a.backend_type, '') as usename, coalesce(a.application_name, '') as application, coalesce(a.state, 'active') as state,
    coalesce(a.xact_start, clock_timestamp()) as since
  from pg_stat_activity a
  where a.pid <> $1 and a.pid in (select h.pid from held h)
  union all
  select 0, p.owner::text, p.gid, 'prepared', p.prepared
  from pg_prepared_xacts p
  join pg_locks x on x.pid is null and x.locktype = 'transactionid' and x.transactionid = p.transaction
  where x.virtualtransaction in (select h.virtualtransaction from held h where h.pid is null)
) b
order by b.since
limit 10
