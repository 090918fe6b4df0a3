select dibs.append_several($1::text, $2::bigint, $3::uuid[], $4::text[], $5::json[], $6::json[], $7::bigint, $8::boolean, $9::boolean)
