select r.n::integer, m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
from rows from (unnest($1::text[]), unnest($2::bigint[]), unnest($3::integer[]), unnest($4::boolean[])) with ordinality r(stream, start, size, backwards, n)
cross join lateral dibs.read_stream(r.stream, r.start, r.size, r.backwards) m
