-- The function is in the schema of the extension, and takes one argument
-- more from PostgreSQL 17 on. It raises an error for an index that is broken.
select p.oid::regproc::text, c.relname::text, c.oid::bigint
from pg_catalog.pg_extension e
join pg_catalog.pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid and d.classid = 'pg_proc'::regclass and d.deptype = 'e'
join pg_catalog.pg_proc p on p.oid = d.objid and p.proname = 'bt_index_check'
cross join pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indexrelid
join pg_catalog.pg_am a on a.oid = c.relam and a.amname = 'btree'
where e.extname = 'amcheck' and i.indrelid = pg_catalog.to_regclass('dibs.messages') and i.indisvalid
  and p.pronargs = (
    select max(o.pronargs) from pg_catalog.pg_proc o where o.proname = 'bt_index_check' and o.pronamespace = p.pronamespace
  )
order by c.relname
