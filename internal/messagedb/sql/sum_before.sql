-- The old table without the messages trimmed or deleted since.
insert into dibs_adoption.sums (stream_name, tail, messages, checksum)
select m.stream_name, false, count(*),
  bit_xor(dibs_adoption.checksum(m.global_position, m.position, m.time, m.stream_name::text, m.type::text, m.id, m.data::text, m.metadata::text))
from message_store_before_dibs.messages m
where m.global_position > $1 and m.global_position <= $2
  and not exists (select from dibs_adoption.removed r where r.id = m.id)
group by m.stream_name
