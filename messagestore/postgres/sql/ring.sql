select dibs.ring($1::text[])
