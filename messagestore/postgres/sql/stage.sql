select dibs.stage($1::text, $2::bigint, $3::uuid, $4::text, $5::text::json, $6::text::json)
