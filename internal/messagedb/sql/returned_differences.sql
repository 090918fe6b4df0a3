with recursive categories as (
  (select m.category from dibs.messages m order by m.category limit 1)
  union all
  select (select m.category from dibs.messages m where m.category > c.category order by m.category limit 1)
  from categories c
  where c.category is not null
),
sums as (
  select m.stream_name, count(*) as messages,
    bit_xor(dibs_adoption.checksum(m.global_position, m.position, m.time at time zone 'UTC', m.stream_name, m.type, m.id, m.data::jsonb::text, m.metadata::jsonb::text)) as checksum
  from categories c
  join lateral (select * from dibs.messages d where d.category = c.category and d.global_position > $1) m on true
  group by m.stream_name
),
old as (
  select m.stream_name::text collate "C" as stream_name, count(*) as messages,
    bit_xor(dibs_adoption.checksum(m.global_position, m.position, m.time, m.stream_name::text, m.type::text, m.id, m.data::text, m.metadata::text)) as checksum
  from message_store_before_dibs.messages m
  where m.global_position > $1
  group by 1
)
select coalesce(s.stream_name, o.stream_name), coalesce(s.messages, 0), coalesce(o.messages, 0)
from sums s
full join old o on o.stream_name = s.stream_name
where s.messages is distinct from o.messages or s.checksum is distinct from o.checksum
limit 10
