select s.name, case when s.good then 'ok' else s.state end, s.name || ' is ' || s.value, case when not s.good then s.advice end
from (
  select n.name, current_setting(n.name) as value, n.good, n.state, n.advice
  from (values
    ('autovacuum', current_setting('autovacuum') = 'on', 'fail',
      'turn it on: without it indexes bloat, and the server stops when transaction ids run out'),
    ('track_counts', current_setting('track_counts') = 'on', 'fail', 'turn it on: autovacuum does nothing without it'),
    ('max_wal_size', pg_size_bytes(current_setting('max_wal_size')) >= 4294967296, 'warn',
      'set 4GB or more where the disk has it: each checkpoint that the log forces makes the writes after it larger'),
    ('checkpoint_timeout', (select setting::integer from pg_settings where name = 'checkpoint_timeout') >= 300, 'warn', 'set 5min or more: a page is logged whole after each checkpoint'),
    ('checkpoint_completion_target', current_setting('checkpoint_completion_target')::numeric >= 0.9, 'warn', 'set 0.9: a checkpoint in a hurry stalls commits'),
    ('wal_compression', current_setting('wal_compression') <> 'off', 'warn', 'set on, or lz4: pages that are logged whole become half as large'),
    ('log_statement', current_setting('log_statement') in ('none', 'ddl') or current_setting('log_parameter_max_length') = '0', 'warn',
      'the server''s log has the content of messages: set ddl, or log_parameter_max_length = 0')
  ) n (name, good, state, advice)
) s
union all
select 'max_connections', case when c.used > 0.8 * c.most then 'warn' else 'ok' end,
  format('%s of %s connections are in use', c.used, c.most),
  case when c.used > 0.8 * c.most then 'make pools smaller, or put PgBouncer in between: a driver needs 4 connections to write' end
from (
  select (select sum(numbackends) from pg_stat_database) as used, current_setting('max_connections')::integer as most
) c
