select dibs.stream_version($1::text)
