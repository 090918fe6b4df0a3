select dibs.raise_epoch($1::uuid)
