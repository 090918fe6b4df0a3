-- The locks by which writers of a category, and removals, wait for each other: those
-- that are held for longer than $1 seconds, or that others wait for so long.
with locks as (
  select l.pid, l.granted, l.objid::bigint as key, l.waitstart, l.mode = 'ShareLock' as shared,
    case l.classid when 1684628083 then 'writes' when 1684628082 then 'removals' else 'migrations' end as holds
  from pg_locks l
  where l.locktype = 'advisory' and l.objsubid = 2 and l.classid in (1684628083, 1684628082, 1684628077)
    and l.database = (select oid from pg_database where datname = current_database())
), held as (
  select h.*, a.usename, a.application_name, a.state, a.query, clock_timestamp() - a.xact_start as since,
    h.pid is not null and a.query = '<insufficient privilege>' as hidden,
    (select count(*) from locks w where not w.granted and w.key = h.key and w.holds = h.holds) as waiting,
    (select max(clock_timestamp() - w.waitstart) from locks w where not w.granted and w.key = h.key and w.holds = h.holds) as waited,
    (select string_agg(w.pid::text, ', ' order by w.waitstart) from locks w where not w.granted and w.key = h.key and w.holds = h.holds) as waiters,
    (select string_agg(b.pid::text, ', ') from unnest(pg_blocking_pids(h.pid)) b (pid)) as blocked_by
  from locks h
  left join pg_stat_activity a on a.pid = h.pid
  where h.granted
), told as (
  select h.*, case
      when h.waited >= $1::float8 * interval '1 second' then 'fail'
      when h.pid is null or h.since >= $1::float8 * interval '1 second' then 'warn'
      when h.hidden then 'hidden'
      else 'ok'
    end as verdict
  from held h
)
select 'category lock', t.verdict,
  format('%s are held by %s%s%s%s%s',
    case t.holds when 'migrations' then t.holds else format('%s of the category with key %s', t.holds, t.key::bit(32)::integer) end,
    coalesce('process ' || t.pid, 'a prepared transaction'),
    case when t.pid is null then '' when t.hidden then ', which this user may not see' else format(' (%s, %s)', t.usename, coalesce(nullif(t.application_name, ''), 'no application_name')) end,
    coalesce(', in a transaction for ' || date_trunc('second', t.since), ''),
    case when not t.hidden then format(', %s: %s', t.state, left(regexp_replace(t.query, '[[:space:]]+', ' ', 'g'), 60)) end,
    case when t.waiting = 1 then format('; process %s waits, for %s', t.waiters, date_trunc('second', t.waited))
      when t.waiting > 1 then format('; %s wait, the first for %s: %s', t.waiting, date_trunc('second', t.waited), t.waiters) else '' end
      || coalesce('; it waits for process ' || t.blocked_by, '')),
  case
    when t.verdict = 'ok' then null
    when t.pid is null then 'commit prepared or rollback prepared: see pg_prepared_xacts'
    when t.verdict = 'hidden' then 'grant pg_monitor to this user'
    else format('no other session %s meanwhile; to end it: select pg_terminate_backend(%s)',
      case when t.holds = 'writes' and t.shared then 'writes to the category but in a transaction, and readers stop below its messages,'
        when t.holds = 'writes' then 'writes to the category' when t.holds = 'removals' then 'removes from the category' else 'migrates' end, t.pid)
  end
from told t
where t.verdict <> 'ok'
union all
select 'category locks', 'ok', case count(*) when 0 then 'no category is locked' else format('%s locks of categories are held, none of them for long', count(*)) end, null
from told t
having count(*) filter (where t.verdict <> 'ok') = 0
