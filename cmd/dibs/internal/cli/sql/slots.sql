with slots as (
  select s.*, pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, s.restart_lsn) as retained
  from pg_replication_slots s
)
select 'replication slot', case
    when s.wal_status in ('lost', 'unreserved') then 'fail'
    when not s.active or s.retained > 2 * pg_size_bytes(current_setting('max_wal_size')) then 'warn'
    else 'ok'
  end,
  format('%s is %s and keeps %s of the log%s', quote_ident(s.slot_name), case when s.active then 'in use' else 'not in use' end,
    pg_size_pretty(coalesce(s.retained, 0)), case when s.wal_status in ('lost', 'unreserved') then ', which is ' || s.wal_status else '' end),
  case
    when s.wal_status in ('lost', 'unreserved') then format('its standby has to be built anew: select pg_drop_replication_slot(%L)', s.slot_name)
    when not s.active then format('the log grows until the disk is full: connect its standby, or select pg_drop_replication_slot(%L)', s.slot_name)
    when s.retained > 2 * pg_size_bytes(current_setting('max_wal_size')) then 'its standby is behind: see pg_stat_replication'
  end
from slots s
