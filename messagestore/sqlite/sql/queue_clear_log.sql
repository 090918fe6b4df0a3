DELETE FROM dibs_queue_log WHERE queue = ?1
