SELECT count(*) FROM dibs_queue_open WHERE queue = ?1 AND place = 'o'
