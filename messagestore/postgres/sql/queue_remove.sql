select done, name_kept, waiting, out_items, later, suspended, held, dead from dibs.queue_remove($1::text, $2::text, $3::boolean, $4::boolean)
