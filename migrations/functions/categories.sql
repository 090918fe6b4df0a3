create or replace function dibs.categories(containing text default null) returns setof text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return query
  with recursive found (category) as (
    (select m.category from dibs.messages m order by m.category limit 1)
    union all
    select (select m.category from dibs.messages m where m.category > f.category order by m.category limit 1)
    from found f
    where f.category is not null
  )
  select f.category from found f
  where f.category is not null and (containing is null or strpos(f.category, containing) > 0)
  order by f.category;
end
$$;

comment on function dibs.categories(text) is
'The names of the categories there are, in order: those that hold the text, or all. It looks into the index once for each.';

grant execute on function dibs.categories to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
