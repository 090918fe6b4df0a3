select 'collation', case when d.recorded is distinct from d.actual then 'warn' else 'ok' end,
  format('collation %s, version %s', d.name, coalesce(d.recorded, 'none')) || case when d.recorded is distinct from d.actual then ', and the system has ' || coalesce(d.actual, 'none') else '' end,
  case when d.recorded is distinct from d.actual
    then 'our texts are collated "C" and stay in order; for other tables reindex, then alter database ' || quote_ident(current_database()) || ' refresh collation version' end
from (
  select datcollate as name, datcollversion as recorded, pg_database_collation_actual_version(oid) as actual
  from pg_database where datname = current_database()
) d
