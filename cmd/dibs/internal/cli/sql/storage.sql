with ours as (
  select c.oid, c.relname, c.relkind, c.relpersistence, c.reltoastrelid, c.reltuples, age(c.relfrozenxid) as age
  from pg_class c
  where c.relnamespace = to_regnamespace('dibs')
), statistics as (
  select s.* from pg_stat_user_tables s join ours o on o.oid = s.relid and o.relkind = 'r'
)
select 'size', 'ok', format('%s: %s in the table, %s in large values, %s in indexes, about %s rows', o.relname,
    pg_size_pretty(pg_relation_size(o.oid)), pg_size_pretty(coalesce(pg_total_relation_size(nullif(o.reltoastrelid, 0)), 0)),
    pg_size_pretty(pg_indexes_size(o.oid)), greatest(o.reltuples, 0)::bigint),
  null
from ours o
where o.relkind = 'r' and o.relname = 'messages'
union all
select 'durability', 'fail', format('%s is unlogged: it is empty after a crash', o.relname), format('alter table dibs.%I set logged', o.relname)
from ours o
where o.relpersistence = 'u' and o.relkind = 'r' and o.relname <> 'staged' -- no row of it outlives its transaction
union all
select 'index', 'fail', format('%s is not valid', c.relname), format('reindex index concurrently dibs.%I', c.relname)
from pg_index i
join pg_class c on c.oid = i.indexrelid
where i.indrelid in (select o.oid from ours o) and not (i.indisvalid and i.indisready)
union all
select 'dead rows', 'warn', format('%s: %s of %s rows are dead', s.relname, s.n_dead_tup, s.n_live_tup + s.n_dead_tup), format('vacuum (analyze) dibs.%I, and see which session holds vacuum back', s.relname)
from statistics s
where s.n_dead_tup > 10000 and s.n_dead_tup > 0.2 * s.n_live_tup
union all
select 'vacuum', case when s.n_ins_since_vacuum > 100000 and s.n_ins_since_vacuum > 0.5 * s.n_live_tup then 'warn' else 'ok' end,
  format('%s: last vacuumed %s, %s rows since', s.relname,
    coalesce(to_char(greatest(s.last_vacuum, s.last_autovacuum) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'never'), s.n_ins_since_vacuum),
  case when s.n_ins_since_vacuum > 100000 and s.n_ins_since_vacuum > 0.5 * s.n_live_tup
    then format('reads look at rows that an index could answer for: alter table dibs.%I set (autovacuum_vacuum_insert_scale_factor = 0.05)', s.relname) end
from statistics s
where s.relname = 'messages'
union all
select 'analyze', case when s.n_mod_since_analyze > 100000 and s.n_mod_since_analyze > 0.5 * s.n_live_tup then 'warn' else 'ok' end,
  format('%s: last analyzed %s, %s rows since', s.relname,
    coalesce(to_char(greatest(s.last_analyze, s.last_autoanalyze) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'never'), s.n_mod_since_analyze),
  case when s.n_mod_since_analyze > 100000 and s.n_mod_since_analyze > 0.5 * s.n_live_tup then format('analyze dibs.%I', s.relname) end
from statistics s
where s.relname = 'messages'
union all
select 'wraparound', case when a.age > 1500000000 then 'fail' when a.age > 1.5 * a.freezes then 'warn' else 'ok' end,
  format('%s: the oldest transaction is %s transactions ago; vacuum freezes from %s on, and the server stops at 2100000000', a.name, a.age, a.freezes),
  case when a.age > 1.5 * a.freezes then 'vacuum (freeze), and see which session holds vacuum back' end
from (
  select 'database ' || quote_ident(datname) as name, age(datfrozenxid) as age, current_setting('autovacuum_freeze_max_age')::bigint as freezes
  from pg_database where datname = current_database()
  union all
  select o.relname, o.age, current_setting('autovacuum_freeze_max_age')::bigint
  from ours o where o.relkind = 'r' and o.relname = 'messages'
) a
union all
select 'sequence', case
    when not has_sequence_privilege(o.oid, 'select, usage') then 'hidden'
    when q.seqmax - coalesce(pg_sequence_last_value(o.oid), 0) < 1000000000 then 'fail'
    else 'ok'
  end,
  case when not has_sequence_privilege(o.oid, 'select, usage') then 'the number of global positions left is not visible to this user'
    else format('%s global positions are left', q.seqmax - coalesce(pg_sequence_last_value(o.oid), 0)) end,
  case
    when not has_sequence_privilege(o.oid, 'select, usage') then 'dibs verify tells whether it is ahead of every message'
    when q.seqmax - coalesce(pg_sequence_last_value(o.oid), 0) < 1000000000 then 'copy the categories to a new store'
  end
from pg_sequence q
join ours o on o.oid = q.seqrelid and o.relname = 'messages_global_position_seq'
