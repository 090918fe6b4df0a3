select a.outcomes, a.versions, a.global_positions
from dibs.append_each($1::text[], $2::bigint[], $3::integer[], $4::bigint[], $5::uuid[], $6::text[], $7::json[], $8::json[], $9::boolean) a
