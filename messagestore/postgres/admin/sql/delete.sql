select d.outcome, d.version, d.messages, d.tombstone_stream, d.more
from dibs.delete_stream($1::text, $2::bigint, $3::boolean, $4::text, $5::integer, $6::boolean, $7::uuid) d
