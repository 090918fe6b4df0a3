select dibs.queue_finish($1::text, $2::text, $3::bigint, $4::bigint[], $5::integer[])
