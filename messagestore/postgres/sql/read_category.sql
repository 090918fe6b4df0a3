select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time, m.more
from dibs.read_category($1::text, $2::bigint, $3::integer, $4::text[], $5::text, $6::integer, $7::integer) m
