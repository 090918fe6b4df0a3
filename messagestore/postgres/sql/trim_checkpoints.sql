select dibs.trim_checkpoints($1::text, $2::bigint)
