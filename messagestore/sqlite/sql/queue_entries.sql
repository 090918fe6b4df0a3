SELECT version, what, at, session, text FROM dibs_queue_log WHERE queue = ?1 AND position = ?2 ORDER BY version
