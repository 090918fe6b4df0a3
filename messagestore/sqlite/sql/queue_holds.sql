SELECT EXISTS (SELECT 1 FROM dibs_queue_open INDEXED BY dibs_queue_open_linked WHERE queue = ?1 AND after > 0)
