-- How many messages there are since the switch.
with recursive categories as (
  (select m.category from dibs.messages m order by m.category limit 1)
  union all
  select (select m.category from dibs.messages m where m.category > c.category order by m.category limit 1)
  from categories c
  where c.category is not null
)
select count(*)
from categories c
join lateral (select from dibs.messages d where d.category = c.category and d.global_position > $1) m on true
