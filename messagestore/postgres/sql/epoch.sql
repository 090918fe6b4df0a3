-- Another server has another identifier, and one that was promoted, or went back to an
-- earlier moment, another timeline, with which the name of each file of its log begins.
select pg_catalog.concat(c.system_identifier, '/', pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))
from pg_catalog.pg_control_system() c
