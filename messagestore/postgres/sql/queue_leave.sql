select dibs.queue_leave($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint[], $7::integer[])
