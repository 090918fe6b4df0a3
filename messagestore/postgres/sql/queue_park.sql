select dibs.queue_park($1::text, $2::text, $3::bigint, $4::integer, $5::text, $6::boolean, $7::boolean)
