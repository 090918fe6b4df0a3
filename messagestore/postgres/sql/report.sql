-- Times are in microseconds since 1970 in every session. An infinite time is null.
select r.names, r.messages, r.bytes,
  case when pg_catalog.isfinite(r.first_time) then (extract(epoch from r.first_time) operator(pg_catalog.*) 1000000::numeric)::bigint end,
  case when pg_catalog.isfinite(r.last_time) then (extract(epoch from r.last_time) operator(pg_catalog.*) 1000000::numeric)::bigint end,
  r.last_position, r.last_global_position, r.groups
from dibs.report($1::text[], $2::text, $3::text, $4::text, $5::bigint) r
