INSERT INTO dibs_queue_sessions (queue, session, until, lease) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, session) DO UPDATE SET until = excluded.until, lease = excluded.lease
