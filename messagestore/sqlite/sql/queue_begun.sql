SELECT session, until, lease FROM dibs_queue_sessions WHERE queue = ?1 AND until - lease > ?2
