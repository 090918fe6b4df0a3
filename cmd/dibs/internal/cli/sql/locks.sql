-- The locks by which writers of a category, removals and migrations wait for each other, with their holders and waiters: those
-- of writers of the category $1, or all if it is null. The floor of a holder that shares the lock of the category $1 is told by
-- its lower 32 bits: see dibs.readable.
with locks as (
  select l.pid, l.virtualtransaction, l.granted, l.objid::bigint as key, l.waitstart, l.mode = 'ShareLock' as shared,
    case l.classid when 1684628083 then 'writes' when 1684628082 then 'removals' else 'migrations' end as holds
  from pg_locks l
  where l.locktype = 'advisory' and l.objsubid = 2 and l.classid in (1684628083, 1684628082, 1684628077)
    and l.database = (select oid from pg_database where datname = current_database())
    and ($1::text is null or l.classid = 1684628083 and l.objid::bigint = pg_catalog.hashtext('dibs.' || $1::text)::bigint & 4294967295)
), held as (
  select h.*, a.usename, a.application_name, a.state, a.query, a.xact_start, clock_timestamp() - a.xact_start as since,
    coalesce(h.pid is not null and a.query = '<insufficient privilege>', false) as hidden,
    (select count(*) from locks w where not w.granted and w.key = h.key and w.holds = h.holds) as waiting,
    (select max(clock_timestamp() - w.waitstart) from locks w where not w.granted and w.key = h.key and w.holds = h.holds) as waited,
    (select string_agg(w.pid::text, ', ' order by w.waitstart) from locks w where not w.granted and w.key = h.key and w.holds = h.holds) as waiters,
    (select string_agg(b.pid::text, ', ') from unnest(pg_blocking_pids(h.pid)) b (pid)) as blocked_by,
    (
      select f.objid::bigint from pg_locks f
      where f.locktype = 'advisory' and f.objsubid = 2 and f.granted and f.virtualtransaction = h.virtualtransaction
        and f.classid::bigint = pg_catalog.hashtext('dibs.floor.' || $1::text)::bigint & 4294967295
        and f.database = (select oid from pg_database where datname = current_database())
    ) as floor
  from locks h
  left join pg_stat_activity a on a.pid = h.pid
  where h.granted
)
select h.key::bit(32)::integer, h.holds, h.shared, coalesce(h.pid, 0), h.hidden,
  case when not h.hidden then h.usename end, case when not h.hidden then h.application_name end,
  case when not h.hidden then h.state end, case when not h.hidden then left(regexp_replace(h.query, '[[:space:]]+', ' ', 'g'), 60) end,
  h.xact_start, extract(epoch from h.since)::float8, date_trunc('second', h.since)::text,
  h.waiting, h.waiters, extract(epoch from h.waited)::float8, date_trunc('second', h.waited)::text, h.blocked_by, h.floor
from held h
order by h.xact_start nulls first, h.pid
