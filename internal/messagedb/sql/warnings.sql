select format('publication %I publishes the old table: add dibs.messages to it', p.pubname)
from pg_publication_tables p
where p.schemaname = 'message_store' and p.tablename = 'messages' and not (select a.puballtables from pg_publication a where a.pubname = p.pubname)
union all
select format('publication %I is of all tables: it publishes each message once more, as it is copied, to subscribers, which need the tables of the schemas dibs and dibs_adoption for that', p.pubname)
from pg_publication p
where p.puballtables
union all
select format('logical replication slot %I of this database keeps the write-ahead log of the copy until it is read', s.slot_name)
from pg_replication_slots s
where s.database = current_database() and s.slot_type = 'logical'
union all
select format('message-db''s table is in the tablespace %s, and ours will be in %s: to change that, run dibs migrate up first, and move the empty table',
  quote_ident(coalesce(nullif(old.name, ''), base.name)), quote_ident(coalesce(nullif(own.name, ''), base.name)))
from (select t.spcname as name from pg_database d join pg_tablespace t on t.oid = d.dattablespace where d.datname = current_database()) base
cross join (
  select coalesce((select s.spcname from pg_class c join pg_tablespace s on s.oid = c.reltablespace where c.oid = 'message_store.messages'::regclass), '') as name
) old
cross join (
  select case when exists (select from pg_class c where c.oid = to_regclass('dibs.messages'))
    then coalesce((select s.spcname from pg_class c join pg_tablespace s on s.oid = c.reltablespace where c.oid = to_regclass('dibs.messages')), '')
    else current_setting('default_tablespace') end as name
) own
where coalesce(nullif(old.name, ''), base.name) <> coalesce(nullif(own.name, ''), base.name)
union all
-- As others have it: this session has its own.
select format('%s is off: services in Go will refuse this server', s.name)
from pg_settings s
where s.name in ('synchronous_commit', 'fsync', 'full_page_writes') and s.reset_val = 'off'
  and coalesce(current_setting('dibs.allow_unsafe_settings', true), '') <> 'on'
