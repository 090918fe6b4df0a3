select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
from dibs.read_stream($1::text, $2::bigint, $3::integer, $4::boolean) m
