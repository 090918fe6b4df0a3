-- Another server has another identifier, and one that was promoted, or went back to an
-- earlier moment, another timeline, with which the name of each file of its log begins. In
-- recovery it writes none.
select pg_catalog.concat(
  c.system_identifier, '/',
  case when not pg_catalog.pg_is_in_recovery() then pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) end
)
from pg_catalog.pg_control_system() c
