select a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(a.xact_start, clock_timestamp())
from unnest(pg_blocking_pids($1)) b (pid)
join pg_stat_activity a on a.pid = b.pid
order by a.xact_start
limit 10
