-- Copies the messages written since the switch back into message-db's table. The categories
-- are found one by one in the primary key, which leads with them.
with recursive categories as (
  (select m.category from dibs.messages m order by m.category limit 1)
  union all
  select (select m.category from dibs.messages m where m.category > c.category order by m.category limit 1)
  from categories c
  where c.category is not null
)
insert into message_store_before_dibs.messages (global_position, position, time, stream_name, type, id, data, metadata)
select m.global_position, m.position, m.time at time zone 'UTC', m.stream_name, m.type, m.id, m.data::jsonb, m.metadata::jsonb
from categories c
join lateral (select * from dibs.messages d where d.category = c.category and d.global_position > $1) m on true
