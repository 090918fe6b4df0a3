select f.outcome, f.streams, f.messages, f.next_position, f.more, f.key_life, f.unhandled
from dibs.forget($1::text, $2::interval, $3::text, $4::bigint, $5::integer, $6::boolean, $7::uuid) f
