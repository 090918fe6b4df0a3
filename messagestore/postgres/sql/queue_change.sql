select dibs.queue_change($1::text, $2::text, $3::text, $4::bigint[], $5::text)
