select a.outcome, $1::text, a.version, a.global_position, a.id
from dibs.append_one($1::text, $2::bigint, $3::uuid, $4::text, $5::text::json, $6::text::json, $7::bigint, $8::boolean) a
