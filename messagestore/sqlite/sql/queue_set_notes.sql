UPDATE dibs_queue_sessions SET notes = ?3 WHERE queue = ?1 AND session = ?2
