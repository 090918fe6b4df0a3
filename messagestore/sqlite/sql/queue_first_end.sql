SELECT until FROM dibs_queue_sessions WHERE queue = ?1 ORDER BY until LIMIT 1
