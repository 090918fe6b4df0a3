select format('publication %I publishes the old table: add dibs.messages to it', p.pubname)
from pg_publication_tables p
where p.schemaname = 'message_store' and p.tablename = 'messages' and not (select a.puballtables from pg_publication a where a.pubname = p.pubname)
union all
select format('publication %I is of all tables: it publishes each message once more, as it is copied', p.pubname)
from pg_publication p
where p.puballtables
union all
select format('logical replication slot %I of this database keeps the write-ahead log of the copy until it is read', s.slot_name)
from pg_replication_slots s
where s.database = current_database() and s.slot_type = 'logical'
union all
select distinct format('role %s has rights of its own in the schema message_store: after the switch it needs them anew, with grant message_store to %1$s',
  case when a.grantee = 0 then 'public' else format('%I', pg_get_userbyid(a.grantee)) end)
from pg_namespace n
cross join aclexplode(n.nspacl) a
where n.nspname = 'message_store' and a.privilege_type = 'USAGE' and a.grantee <> n.nspowner
  and a.grantee is distinct from to_regrole('message_store')::oid
union all
select 'synchronous_commit is off: the last messages before a crash may be lost'
where current_setting('synchronous_commit') = 'off'
