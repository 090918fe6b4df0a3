select * from dibs.queue_item($1::text, $2::text, $3::bigint)
