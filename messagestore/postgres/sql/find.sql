select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
from dibs.find_messages($1::text, $2::uuid[]) m
