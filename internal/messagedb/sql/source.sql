-- Whether the schema message_store is message-db's, and whether this user may take it over.
select
  n.oid is not null as has_schema,
  coalesce(t.relkind in ('r', 'p'), false) as has_table,
  coalesce(t.relkind = 'r' and not t.relispartition and not exists (select from pg_inherits i where t.oid in (i.inhparent, i.inhrelid)), false) as is_plain,
  coalesce((select array_agg(e.name || ' ' || e.type order by e.name)
    from (values ('id', 'uuid'), ('stream_name', 'text'), ('type', 'text'), ('position', 'bigint'), ('global_position', 'bigint'),
      ('data', 'jsonb'), ('metadata', 'jsonb'), ('time', 'timestamp without time zone')) e (name, type)
    where not exists (
      select from pg_attribute a
      where a.attrelid = t.oid and a.attname = e.name and a.attnum > 0 and not a.attisdropped
        and replace(format_type(a.atttypid, null), 'character varying', 'text') = e.type
    )), '{}') as missing,
  coalesce((select array_agg(a.attname::text order by a.attname)
    from pg_attribute a
    where a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
      and a.attname not in ('id', 'stream_name', 'type', 'position', 'global_position', 'data', 'metadata', 'time')), '{}') as added,
  -- Read, and not called: it may be anybody's.
  coalesce((select coalesce(substring(p.prosrc from '''([^'']*)'''), '')
    from pg_proc p where p.pronamespace = n.oid and p.proname = 'message_store_version' and p.pronargs = 0), '') as version,
  coalesce(pg_has_role(n.nspowner, 'usage'), false) as owns_schema,
  coalesce(pg_has_role(t.relowner, 'usage'), false) as owns_table,
  has_database_privilege(current_database(), 'create') as may_create,
  to_regnamespace('message_store_before_dibs') is not null as has_before,
  to_regnamespace('dibs_adoption') is not null as has_adoption,
  exists (select from pg_class c where c.relnamespace = to_regnamespace('dibs') and c.relname = 'messages') as has_store,
  coalesce(pg_total_relation_size(t.oid), 0) as bytes,
  getdatabaseencoding() as encoding,
  pg_is_in_recovery() as is_standby,
  exists (select from pg_index i where i.indrelid = t.oid and i.indisunique and i.indisvalid and i.indpred is null
    and pg_get_indexdef(i.indexrelid, 1, true) = 'id' and i.indnkeyatts = 1) as unique_ids,
  exists (select from pg_index i where i.indrelid = t.oid and i.indisunique and i.indisvalid and i.indpred is null
    and pg_get_indexdef(i.indexrelid, 1, true) = 'global_position' and i.indnkeyatts = 1) as unique_globals,
  exists (select from pg_index i where i.indrelid = t.oid and i.indisunique and i.indisvalid and i.indpred is null and i.indnkeyatts = 2
    and pg_get_indexdef(i.indexrelid, 1, true) in ('stream_name', '"position"') and pg_get_indexdef(i.indexrelid, 2, true) in ('stream_name', '"position"')) as unique_positions
from (select) one
left join pg_namespace n on n.nspname = 'message_store'
left join pg_class t on t.relnamespace = n.oid and t.relname = 'messages'
