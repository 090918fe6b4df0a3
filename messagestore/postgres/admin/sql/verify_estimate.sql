select greatest(c.reltuples, 0)::bigint from pg_catalog.pg_class c where c.oid = pg_catalog.to_regclass('dibs.messages')
