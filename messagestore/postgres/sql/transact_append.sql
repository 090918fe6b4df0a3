select a.versions, a.global_positions, a.times
from dibs.append_unit($1::text[], $2::bigint[], $3::integer[], $4::uuid[], $5::text[], $6::json[], $7::json[], $8::bigint[], $9::text::jsonb, $10::uuid[]) a
