select * from dibs.queue_states($1::text, $2::bigint)
