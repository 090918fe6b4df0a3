SELECT EXISTS (SELECT 1 FROM dibs_queue_open INDEXED BY dibs_queue_open_after WHERE queue = ?1 AND place IN ('h', 'z'))
