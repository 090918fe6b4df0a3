INSERT INTO dibs_queue_sessions (queue, session, until) VALUES (?1, ?2, ?3)
ON CONFLICT (queue, session) DO UPDATE SET until = excluded.until
