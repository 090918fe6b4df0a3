select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
from dibs.last_message($1::text, $2::text) m
