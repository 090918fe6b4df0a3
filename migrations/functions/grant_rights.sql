-- The files say which rights they grant, and dibs.migrations has kept that. Rights of the
-- schema message_store are passed over while that schema is message-db's own.
create or replace function dibs.grant_rights() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  ours constant boolean := exists (
    select from pg_class where relnamespace = to_regnamespace('message_store') and relname = 'stored_messages' and relkind = 'v'
  );
  granted record;
begin
  for granted in
    select g.statement
    from dibs.migrations m
    cross join unnest(m.grants) with ordinality g (statement, n)
    where to_regrole(substring(g.statement from ' to ([^ ]+)$')) is not null
      and (ours or not starts_with(m.name, 'message_store/'))
    order by m.name, g.n
  loop
    execute granted.statement;
  end loop;

  -- A table elsewhere with a column of one of these types would be in the way of a change
  -- of the type.
  for granted in
    select t.oid::regtype as name
    from pg_type t
    where t.typnamespace = 'dibs'::regnamespace and t.typtype in ('c', 'd', 'e', 'r')
  loop
    execute format('revoke all on type %s from public', granted.name);
  end loop;
end
$$;

comment on function dibs.grant_rights() is
'Gives each role that exists the rights that the installed files grant to it. It may be called at any time: a role that was made
since gets its rights.';
