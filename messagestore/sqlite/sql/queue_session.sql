SELECT until, lease FROM dibs_queue_sessions WHERE queue = ?1 AND session = ?2
