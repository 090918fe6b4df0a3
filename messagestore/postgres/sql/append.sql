select a.outcome, a.stream, a.version, a.global_position, a.id, a.time, a.met_type, a.met_data, a.met_metadata, a.met_at
from dibs.append($1::text[], $2::bigint[], $3::integer[], $4::uuid[], $5::text[], $6::text[]::json[], $7::text[]::json[], $8::bigint[], $9::boolean, $10::boolean, $11::text::jsonb, $12::uuid[], $13::boolean) a
