-- The tail is short enough to look each message up. It is read first, by its numbers:
-- in the order of the streams, as the end would have it, all of the table would be read.
with tail as materialized (
  select o.* from message_store.messages o where o.global_position > $1 and o.global_position <= $2
)
select o.stream_name, count(*), count(n.id)
from tail o
left join lateral (select * from dibs.messages c where c.id = o.id limit 1) n on true
group by o.stream_name
having count(*) <> count(n.id)
  or bit_xor(dibs_adoption.checksum(o.global_position, o.position, o.time, o.stream_name::text, o.type::text, o.id, o.data::text, o.metadata::text))
    <> bit_xor(dibs_adoption.checksum(n.global_position, n.position, n.time at time zone 'UTC', n.stream_name, n.type, n.id, n.data::text, n.metadata::text))
limit 10
