DELETE FROM dibs_queue_open WHERE queue = ?1
