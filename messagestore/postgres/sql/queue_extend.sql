select dibs.queue_extend($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint[], $6::integer[], $7::jsonb, $8::bigint[])
