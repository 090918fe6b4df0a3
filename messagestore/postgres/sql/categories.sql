select c from dibs.categories($1::text) c
