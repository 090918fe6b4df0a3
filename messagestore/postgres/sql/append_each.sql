select a.outcomes, a.versions, a.global_positions
from dibs.append_each($1::text[], $2::integer[], $3::bigint[], $4::integer[], $5::bigint[], $6::uuid[], $7::text[], $8::text[]::json[], $9::text[]::json[]) a
