select x.n::integer, x.held >= $5, x.id, x.stream_name, x.type, x.position, x.global_position, x.data, x.metadata, x.time
from (
  select r.n, m.*, z.size, sum(z.size) over (rows unbounded preceding) as held
  from rows from (unnest($1::text[]), unnest($2::bigint[]), unnest($3::integer[]), unnest($4::boolean[])) with ordinality r(stream, start, size, backwards, n)
  cross join lateral dibs.read_stream(r.stream, r.start, r.size, r.backwards) m
  cross join lateral (select coalesce(pg_column_size(m.data), 0) + coalesce(pg_column_size(m.metadata), 0)) z(size)
) x
where x.held - x.size < $5::bigint
