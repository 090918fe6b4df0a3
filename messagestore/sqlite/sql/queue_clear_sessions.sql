DELETE FROM dibs_queue_sessions WHERE queue = ?1
