select dibs.count_category($1::text, $2::bigint, $3::bigint, $4::text[], $5::text, $6::integer, $7::integer)
