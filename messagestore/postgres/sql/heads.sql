select dibs.heads($1::text[])
