select x.position, x.state, x.version, x.failures, x.session, x.until, x.due, x.after, x.error, x.note,
  x.id, x.stream_name, x.stream_position, x.type, x.data, x.metadata, x.time
from (
  select i.*, row_number() over () as n, sum(octet_length(i.data)) over (rows unbounded preceding) as held
  from dibs.queue_items($1::text, $2::text, $3::text, $4::bigint, $5::integer) i
) x
where x.n = 1 or coalesce(x.held, 0) <= $6::bigint
