select 'version', case when s.version >= 150000 then 'ok' else 'fail' end,
  'PostgreSQL ' || current_setting('server_version'),
  case when s.version < 150000 then 'upgrade to 15 or later' end
from (select current_setting('server_version_num')::integer as version) s
union all
select 'checksums', case when current_setting('data_checksums') = 'on' then 'ok' else 'warn' end,
  'data_checksums is ' || current_setting('data_checksums'),
  case when current_setting('data_checksums') <> 'on'
    then 'a page that the disk changed would go unnoticed: pg_checksums --enable, while the server is stopped' end
union all
-- A user without the right to see the standbys sees their rows and no more.
select 'standbys', case
    when r.connected = 0 and s.names = '' then 'ok'
    when s.names = '' then 'warn'
    when r.waited_for > 0 then 'ok'
    when r.connected > r.visible then 'hidden'
    else 'fail'
  end,
  case r.connected when 0 then 'no standby is connected' else format('%s connected, %s waited for', case r.connected when 1 then '1 standby is' else r.connected || ' standbys are' end,
      case when r.connected > r.visible then 'an unknown number' else r.waited_for::text end) end
    || format('; synchronous_standby_names is %L', s.names),
  case
    when r.connected = 0 and s.names = '' then null
    when s.names = '' then 'a failover to a standby that is not waited for loses acknowledged messages: set synchronous_standby_names, or never fail over to one without a check by dibs verify'
    when r.waited_for > 0 then null
    when r.connected > r.visible then 'grant pg_monitor to this user'
    else 'no commit ends: connect the standby, or clear synchronous_standby_names'
  end
from (
  select count(*) as connected, count(state) as visible, count(*) filter (where sync_state in ('sync', 'quorum')) as waited_for
  from pg_stat_replication
) r
cross join (select current_setting('synchronous_standby_names') as names) s
where not pg_is_in_recovery()
