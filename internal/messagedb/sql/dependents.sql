-- Objects of others that depend on the schema $1, or are in it: they would go on with the
-- old table, or be missed under its name. $2 says that the schema is Dibs', not
-- message-db's.
with inside as (
  select 'pg_class'::regclass as classid, c.oid as objid, c.relname as name from pg_class c where c.relnamespace = to_regnamespace($1)
  union all
  select 'pg_proc'::regclass, p.oid, p.proname from pg_proc p where p.pronamespace = to_regnamespace($1)
  union all
  select 'pg_type'::regclass, t.oid, t.typname from pg_type t where t.typnamespace = to_regnamespace($1)
),
-- Each dependent as the object that a DBA knows it by.
dependent as (
  select
    case
      when r.oid is not null then 'pg_class'::regclass
      when f.oid is not null then 'pg_class'::regclass
      else d.classid
    end as classid,
    coalesce(r.ev_class, f.adrelid, d.objid) as objid
  from pg_depend d
  join inside i on i.classid = d.refclassid and i.objid = d.refobjid
  left join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid
  left join pg_attrdef f on d.classid = 'pg_attrdef'::regclass and f.oid = d.objid
  where d.deptype in ('n', 'a')
    and (d.classid in ('pg_rewrite'::regclass, 'pg_attrdef'::regclass, 'pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass)
      -- Foreign keys of others' tables. Constraints on a table of the schema move with it,
      -- or are below.
      or exists (select from pg_constraint o where d.classid = 'pg_constraint'::regclass and o.oid = d.objid and o.contype <> 'f'
        and not exists (select from inside i where i.classid = 'pg_class'::regclass and i.objid = o.conrelid))
      or exists (select from pg_policy o where d.classid = 'pg_policy'::regclass and o.oid = d.objid)
      or exists (select from pg_trigger o where d.classid = 'pg_trigger'::regclass and o.oid = d.objid and not o.tgisinternal and o.tgname not like 'dibs\_adoption\_%'
        and not exists (select from inside i where i.classid = 'pg_class'::regclass and i.objid = o.tgrelid)))
)
select pg_describe_object(d.classid, d.objid, 0) as object
from dependent d
where not exists (select from inside i where i.classid = d.classid and i.objid = d.objid)
  and not ($2 and d.classid = 'pg_proc'::regclass and exists (select from pg_proc p where p.oid = d.objid and p.pronamespace = to_regnamespace('dibs')))
  -- A row type and an array type come and go with their relation or element.
  and not exists (select from pg_type t join inside i on i.classid = 'pg_type'::regclass and i.objid = t.typelem where d.classid = 'pg_type'::regclass and t.oid = d.objid)
union
select pg_describe_object('pg_constraint'::regclass, k.oid, 0)
from pg_constraint k
where k.contype = 'f'
  and (k.confrelid in (select objid from inside where classid = 'pg_class'::regclass) or k.conrelid in (select objid from inside where classid = 'pg_class'::regclass))
union
select pg_describe_object('pg_trigger'::regclass, g.oid, 0)
from pg_trigger g
where not g.tgisinternal and g.tgname not like 'dibs\_adoption\_%'
  and g.tgrelid in (select objid from inside where classid = 'pg_class'::regclass)
  and not ($2 and g.tgfoid in (select oid from pg_proc where pronamespace = to_regnamespace('dibs')))
union
select pg_describe_object('pg_rewrite'::regclass, w.oid, 0)
from pg_rewrite w
where w.rulename <> '_RETURN' and w.ev_class in (select objid from inside where classid = 'pg_class'::regclass)
union
select pg_describe_object('pg_policy'::regclass, p.oid, 0)
from pg_policy p where p.polrelid in (select objid from inside where classid = 'pg_class'::regclass)
union
select pg_describe_object('pg_class'::regclass, c.oid, 0)
from pg_class c
where c.relnamespace = to_regnamespace($1) and c.relkind in ('r', 'v', 'm', 'S', 'f', 'p')
  and c.relname not in ('messages', 'messages_global_position_seq', 'stream_summary', 'type_summary', 'stream_type_summary',
    'type_stream_summary', 'category_type_summary', 'type_category_summary')
  and not ($2 and c.relname in ('stored_messages', 'settings'))
union
select pg_describe_object('pg_proc'::regclass, p.oid, 0)
from pg_proc p
where p.pronamespace = to_regnamespace($1)
  and p.proname not in ('write_message', 'get_stream_messages', 'get_category_messages', 'get_last_stream_message', 'stream_version',
    'id', 'cardinal_id', 'category', 'is_category', 'hash_64', 'acquire_lock', 'message_store_version')
  and not ($2 and p.proname = 'readable')
  and not exists (select from pg_depend e where e.classid = 'pg_proc'::regclass and e.objid = p.oid and e.deptype = 'e')
order by 1
