-- The sessions that keep others waiting for the tables for longer than $1 seconds, or have
-- one locked for so long. A session that waits in line is not at fault: the head of the
-- line is.
with recursive ours as (
  select c.oid, c.relname from pg_class c where c.relnamespace = to_regnamespace('dibs')
), locks as materialized (
  select coalesce(l.pid, 0) as pid, l.granted, l.locktype, l.mode, l.relation, l.waitstart, o.relname
  from pg_locks l
  left join ours o on o.oid = l.relation and l.database = (select oid from pg_database where datname = current_database())
  where l.pid is distinct from pg_backend_pid()
), waiters as materialized (
  select w.pid, w.waitstart, coalesce(w.relname, 'a row') as waits_for
  from locks w
  where not w.granted and w.locktype <> 'advisory' and exists (select from locks l where l.pid = w.pid and l.relname is not null)
), edges as materialized (
  select w.pid, b.pid as behind from waiters w cross join lateral unnest(pg_blocking_pids(w.pid)) b (pid)
), line (waiter, pid) as (
  select e.pid, e.behind from edges e
  union
  select l.waiter, e.behind from line l join edges e on e.pid = l.pid
), holders as (
  select l.pid, w.pid as waiter, w.waitstart, w.waits_for as what from line l join waiters w on w.pid = l.waiter
  union all
  select l.pid, null, null, l.relname from locks l
  where l.granted and l.relname is not null and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
), held as (
  select h.pid, string_agg(distinct h.what, ' and ') as what, count(distinct h.waiter) as waiting,
    date_trunc('second', clock_timestamp() - min(h.waitstart)) as waited, string_agg(distinct h.waiter::text, ', ') as waiters
  from holders h
  where h.pid not in (select w.pid from waiters w)
  group by h.pid
), told as (
  select h.*, a.usename, a.application_name, a.state, a.query, date_trunc('second', clock_timestamp() - a.xact_start) as since,
    coalesce(a.query = '<insufficient privilege>', false) as hidden,
    clock_timestamp() - a.xact_start >= $1::float8 * interval '1 second' as long,
    case
      when h.waited >= $1::float8 * interval '1 second' then 'fail'
      when h.pid = 0 or clock_timestamp() - a.xact_start >= $1::float8 * interval '1 second' then 'warn'
      else 'ok'
    end as verdict
  from held h
  left join pg_stat_activity a on a.pid = h.pid
  where a.pid is not null or h.pid = 0 -- it has not ended since
)
select 'table lock', t.verdict,
  format('%s is held by %s%s%s%s%s', t.what,
    case when t.pid = 0 then 'a prepared transaction' else 'process ' || t.pid end,
    case when t.pid = 0 then '' when t.hidden then ', which this user may not see' else format(' (%s, %s)', t.usename, coalesce(nullif(t.application_name, ''), 'no application_name')) end,
    coalesce(', in a transaction for ' || t.since, ''),
    case when t.pid <> 0 and not t.hidden then format(', %s: %s', t.state, left(regexp_replace(t.query, '[[:space:]]+', ' ', 'g'), 60)) end,
    case when t.waiting = 1 then format('; process %s waits, for %s', t.waiters, t.waited)
      when t.waiting > 1 then format('; %s wait, the first for %s: %s', t.waiting, t.waited, t.waiters) end),
  case when t.pid = 0 then 'commit prepared or rollback prepared: see pg_prepared_xacts'
    when t.long then format('no other session gets these locks meanwhile; to end it: select pg_terminate_backend(%s)', t.pid)
    else 'no other session gets these locks meanwhile; its transaction has only begun: look again' end
from told t
where t.verdict <> 'ok'
union all
select 'table locks', 'ok', case count(w.pid) when 0 then 'no session waits for a table' else count(w.pid) || ' wait for a table, none of them for long' end, null
from waiters w
having not exists (select from told t where t.verdict <> 'ok')
