SELECT session FROM dibs_queue_sessions WHERE queue = ?1 AND until <= ?2 ORDER BY until, session
