-- The streams of a category with a message that an open dead letter refers to. The letters of category account:command
-- are in account:command+deadLetter-<consumer>+<message id>.
create or replace function dibs.parked_streams(of_category text) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(distinct m.stream_name), '{}')
  from (
    select distinct on (o.stream_name) o.type,
      substring(o.stream_name from '[+]([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$')::uuid as id
    from dibs.messages o
    where o.category = of_category || case when strpos(of_category, ':') > 0 then '+' else ':' end || 'deadLetter'
      and o.type in ('Parked', 'Redriven', 'dibs:Tombstone')
    order by o.stream_name, o.position desc
  ) l
  join dibs.messages m on m.id = l.id
  where l.type = 'Parked'
$$;
