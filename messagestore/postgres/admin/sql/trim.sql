select t.outcome, t.removed, t.first_position, t.version, t.recent, t.more, t.queue
from dibs.trim($1::text, $2::bigint, $3::timestamptz, $4::text, $5::interval, $6::integer, $7::boolean, $9::uuid, $8::bigint) t
