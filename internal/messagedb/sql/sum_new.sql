-- By its place in the table, since nothing finds a message by its global position.
insert into dibs_adoption.sums (stream_name, tail, messages, checksum)
select m.stream_name, m.global_position > $3, -count(*),
  bit_xor(dibs_adoption.checksum(m.global_position, m.position, m.time at time zone 'UTC', m.stream_name, m.type, m.id, m.data::text, m.metadata::text))
from dibs.messages m
where m.ctid >= $1::text::tid and m.ctid < $2::text::tid
group by m.stream_name, m.global_position > $3
