select r.names, r.messages, r.bytes, r.first_time, r.last_time, r.last_position, r.last_global_position, r.groups
from dibs.report($1::text[], $2::text, $3::text, $4::text, $5::bigint) r
