-- The first messages written since the switch that message-db's table cannot hold.
with recursive categories as (
  (select m.category from dibs.messages m order by m.category limit 1)
  union all
  select (select m.category from dibs.messages m where m.category > c.category order by m.category limit 1)
  from categories c
  where c.category is not null
)
select m.message
from categories c
join lateral (
  select pg_catalog.concat(d.stream_name, '@', d.position) as message, d.global_position
  from dibs.messages d
  where d.category = c.category and d.global_position > $1 and not (dibs.fits_jsonb(d.data) and dibs.fits_jsonb(d.metadata))
) m on true
order by m.global_position
limit 10
