-- PostgreSQL lets the public call every function, and default privileges of the owner may
-- give other roles more. dibs migrate up, and the printed script, call this before
-- dibs.grant_rights.
create or replace function dibs.revoke_defaults(space regnamespace) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  given record;
begin
  for given in
    select distinct o.kind, o.name, case e.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(e.grantee)) end as role
    from (
      select 'schema', 'n', space::text, nspowner, nspacl from pg_namespace where oid = space
      union all
      select case relkind when 'S' then 'sequence' else 'table' end, case relkind when 'S' then 'S' else 'r' end,
        oid::regclass::text, relowner, relacl
      from pg_class where relnamespace = space and relkind in ('r', 'p', 'v', 'm', 'f', 'S')
      union all
      select 'routine', 'f', oid::regprocedure::text, proowner, coalesce(proacl, acldefault('f', proowner)) from pg_proc where pronamespace = space
      union all
      -- Types that are made by themselves: a table's has no rights of its own.
      select 'type', 'T', t.oid::regtype::text, t.typowner, t.typacl
      from pg_type t
      where t.typnamespace = space and t.typtype in ('c', 'd', 'e', 'r')
        and not exists (select from pg_class c where c.oid = t.typrelid and c.relkind <> 'c')
    ) o (kind, default_kind, name, owner, acl)
    cross join lateral aclexplode(o.acl) e
    where pg_get_userbyid(o.owner) = current_user and e.grantee <> o.owner
      -- A type is no secret, and in message-db the public may use it.
      and case when e.grantee = 0 then o.kind <> 'type' else exists (
        select from pg_default_acl d
        cross join lateral aclexplode(d.defaclacl) a
        where d.defaclrole = o.owner and d.defaclnamespace in (0, space)
          and d.defaclobjtype::text = o.default_kind and a.grantee = e.grantee
      ) end
  loop
    execute format('revoke all on %s %s from %s', given.kind, given.name, given.role);
  end loop;
end
$$;

comment on function dibs.revoke_defaults(regnamespace) is
'Takes back the rights that the public, and roles named by the owner''s default privileges, have on the objects of a schema.';
