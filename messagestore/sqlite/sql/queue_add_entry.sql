INSERT INTO dibs_queue_log (queue, position, version, what, at, session, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO NOTHING
