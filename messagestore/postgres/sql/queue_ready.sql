select * from dibs.queue_ready($1::text, $2::text)
