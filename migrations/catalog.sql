-- The objects of the schemas dibs (it may have another name: $1) and message_store, as lines of
-- an object and a fact, or no fact, in words that every version of PostgreSQL spells the same
-- way: so neither bodies of views nor expressions.
with spaces as (
  select n.oid, n.nspname, n.nspacl, n.nspowner,
    case n.nspname when $1 then 'dibs' else n.nspname end as name,
    (select o.nspowner from pg_namespace o where o.nspname = $1) as owner
  from pg_namespace n
  where n.nspname = $1 or n.nspname = 'message_store' and $1 = 'dibs'
),
relations as (
  select c.*, s.owner as rightful_owner,
    case c.relkind when 'r' then 'table' when 'p' then 'table' when 'v' then 'view' when 'm' then 'view' when 'S' then 'sequence' when 'c' then 'type' else 'relation' end
      || ' ' || s.name || '.' || c.relname as object
  from pg_class c
  join spaces s on s.oid = c.relnamespace
  where c.relkind not in ('i', 'I', 't')
),
functions as (
  select p.*, s.owner as rightful_owner,
    'function ' || s.name || '.' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' as object
  from pg_proc p
  join spaces s on s.oid = p.pronamespace
),
types as (
  select t.*, s.owner as rightful_owner, 'type ' || s.name || '.' || t.typname as object
  from pg_type t
  join spaces s on s.oid = t.typnamespace
  where t.typtype in ('c', 'd', 'e', 'r') and not exists (select from pg_class c where c.oid = t.typrelid and c.relkind <> 'c')
),
acls (object, owner, rightful_owner, what, acl) as (
  select 'schema ' || name, nspowner, owner, '', coalesce(nspacl, acldefault('n', nspowner)) from spaces
  union all
  select object, relowner, rightful_owner, '', coalesce(relacl, acldefault(case relkind when 'S' then 's' else 'r' end::"char", relowner))
  from relations where relkind <> 'c'
  union all
  select r.object, r.relowner, r.rightful_owner, ' (' || a.attname || ')', a.attacl
  from relations r join pg_attribute a on a.attrelid = r.oid where a.attacl is not null
  union all
  select r.object, r.relowner, r.rightful_owner, ' of its type', coalesce(t.typacl, acldefault('T', t.typowner))
  from relations r join pg_type t on t.oid = r.reltype where r.relkind <> 'c'
  union all
  select object, proowner, rightful_owner, '', coalesce(proacl, acldefault('f', proowner)) from functions
  union all
  select object, typowner, rightful_owner, '', coalesce(typacl, acldefault('T', typowner)) from types
),
facts (object, fact) as (
  select object, null from acls
  union
  select object, 'owner ' || pg_get_userbyid(owner) || ', not the owner of the schema' from acls where owner <> rightful_owner
  union all
  select g.object, 'grant ' || string_agg(lower(g.privilege_type), ', ' order by g.privilege_type) || g.what || ' to '
    || case g.grantee when 0 then 'public' else pg_get_userbyid(g.grantee)::text end || case when g.is_grantable then ' with grant option' else '' end
  from (
    select a.object, a.what, e.*
    from acls a
    cross join lateral aclexplode(a.acl) e
    where e.grantee <> a.owner
  ) g
  group by g.object, g.what, g.grantee, g.is_grantable
  union all

  select r.object, 'column ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    || coalesce(' collate "' || nullif(l.collname, 'default') || '"', '')
    || case when a.attnotnull then ' not null' else '' end
    || case when a.attgenerated <> '' then ' generated' when a.attidentity <> '' then ' identity' when a.atthasdef then ' default' else '' end
  from relations r
  join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
  left join pg_collation l on l.oid = a.attcollation
  where r.relkind <> 'S'
  union all
  select object, 'not logged' from relations where relpersistence <> 'p'
  union all
  select object, 'row security' from relations where relrowsecurity or relforcerowsecurity
  union all
  select r.object, 'with ' || o.option from relations r cross join lateral unnest(r.reloptions) o (option) where r.relkind = 'v'
  union all
  select r.object, 'constraint ' || c.conname || ' ' || case c.contype when 'p' then 'primary key' when 'u' then 'unique' when 'c' then 'check' when 'f' then 'foreign key' else 'exclude' end
    || coalesce(' (' || (
      select string_agg(a.attname, ', ' order by k.n)
      from unnest(c.conkey) with ordinality k (attnum, n) join pg_attribute a on a.attrelid = r.oid and a.attnum = k.attnum
    ) || ')', '')
    || case when c.condeferrable then ' deferrable' else '' end || case when c.convalidated then '' else ' not valid' end
  from relations r
  join pg_constraint c on c.conrelid = r.oid and c.contype in ('p', 'u', 'c', 'f', 'x')
  union all
  select r.object, case when i.indisunique then 'unique ' else '' end || 'index ' || x.relname || ' (' || (
      select string_agg(coalesce(a.attname, 'expression'), ', ' order by k.n)
      from unnest(i.indkey) with ordinality k (attnum, n) left join pg_attribute a on a.attrelid = r.oid and a.attnum = k.attnum
    ) || ')' || case when i.indpred is null then '' else ' partial' end || case when i.indisvalid and i.indisready then '' else ' invalid' end
  from relations r
  join pg_index i on i.indrelid = r.oid
  -- The one that 0009 leaves to the DBA.
  join pg_class x on x.oid = i.indexrelid and (i.indisunique or x.relname <> 'messages_global_position')
  union all
  select r.object, 'trigger ' || t.tgname || ' '
    || case when t.tgtype & 2 > 0 then 'before' when t.tgtype & 64 > 0 then 'instead of' else 'after' end
    || case when t.tgtype & 4 > 0 then ' insert' else '' end || case when t.tgtype & 8 > 0 then ' delete' else '' end
    || case when t.tgtype & 16 > 0 then ' update' else '' end || case when t.tgtype & 32 > 0 then ' truncate' else '' end
    || case when t.tgtype & 1 > 0 then ' for each row' else ' for each statement' end
    || ' calls ' || quote_ident(n.nspname) || '.' || p.proname
    || case t.tgenabled when 'O' then '' when 'D' then ', disabled' when 'R' then ', on replicas' else ', always' end
  from relations r
  -- Those of Adopt stay while there is a way back.
  join pg_trigger t on t.tgrelid = r.oid and not t.tgisinternal and t.tgname not like 'dibs\_adoption\_%'
  join pg_proc p on p.oid = t.tgfoid
  join pg_namespace n on n.oid = p.pronamespace
  union all
  select r.object, 'rule ' || w.rulename from relations r join pg_rewrite w on w.ev_class = r.oid where w.rulename <> '_RETURN'
  union all
  select r.object, format_type(s.seqtypid, null) || ', from ' || s.seqstart || ' by ' || s.seqincrement || ' between ' || s.seqmin || ' and ' || s.seqmax
    || ', cache ' || s.seqcache || case when s.seqcycle then ', cycle' else '' end
  from relations r
  join pg_sequence s on s.seqrelid = r.oid
  union all
  select r.object, 'reads ' || quote_ident(n.nspname) || '.' || c.relname || ' (' || string_agg(a.attname, ', ' order by a.attname collate "C") || ')'
  from relations r
  join pg_rewrite w on w.ev_class = r.oid and w.rulename = '_RETURN'
  join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid and d.refclassid = 'pg_class'::regclass and d.refobjsubid > 0
  join pg_class c on c.oid = d.refobjid and c.oid <> r.oid
  join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attnum = d.refobjsubid
  group by r.object, n.nspname, c.relname
  union all
  select r.object, 'calls ' || d.refobjid::regprocedure
  from relations r
  join pg_rewrite w on w.ev_class = r.oid and w.rulename = '_RETURN'
  join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid and d.refclassid = 'pg_proc'::regclass
  union all

  select f.object, case f.prokind when 'f' then 'returns ' || pg_get_function_result(f.oid) when 'p' then 'procedure' else 'aggregate or window' end
    || case when f.pronargdefaults > 0 then ', ' || f.pronargdefaults || ' defaults' else '' end
  from functions f
  union all
  select f.object, l.lanname || case f.provolatile when 'i' then ' immutable' when 's' then ' stable' else ' volatile' end
    || case f.proparallel when 's' then ' parallel safe' when 'r' then ' parallel restricted' else '' end
    || case when f.proisstrict then ' strict' else '' end || case when f.proleakproof then ' leakproof' else '' end
    || case when f.prosecdef then ' security definer' else '' end
  from functions f
  join pg_language l on l.oid = f.prolang
  union all
  select f.object, 'set ' || c.setting from functions f cross join lateral unnest(f.proconfig) c (setting)
  union all
  -- A body that was parsed when the function was made has no text that is the same
  -- everywhere.
  select f.object, 'body ' || md5(replace(f.prosrc, '"' || $1 || '"', 'dibs')) from functions f where f.prosqlbody is null
  union all
  select f.object, 'calls ' || d.refobjid::regprocedure
  from functions f
  join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = f.oid and d.refclassid = 'pg_proc'::regclass
  union all

  select t.object, case t.typtype when 'd' then 'domain over ' || format_type(t.typbasetype, t.typtypmod) || case when t.typnotnull then ' not null' else '' end when 'e' then 'enum' else 'range' end
  from types t where t.typtype <> 'c'
  union all
  select 'operator ' || s.name || '.' || o.oprname || ' (' || o.oprleft::regtype || ', ' || o.oprright::regtype || ')', 'calls ' || o.oprcode
  from spaces s join pg_operator o on o.oprnamespace = s.oid
  union all
  select 'default privileges in schema ' || s.name, 'of ' || pg_get_userbyid(d.defaclrole) || ': ' || d.defaclacl::text
  from spaces s join pg_default_acl d on d.defaclnamespace = s.oid
)
select
  regexp_replace(object, '(^|[ (,])' || quote_ident($1) || '\.', '\1dibs.', 'g') as object,
  coalesce(regexp_replace(fact, '(^|[ (,])' || quote_ident($1) || '\.', '\1dibs.', 'g'), '') as fact
from facts
group by 1, 2
