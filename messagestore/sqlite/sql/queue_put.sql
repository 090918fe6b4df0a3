INSERT INTO dibs_queue_open (queue, position, version, place, failures, session, due, after, error, woken, given, ends)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT (queue, position) DO UPDATE SET
  version = excluded.version, place = excluded.place, failures = excluded.failures, session = excluded.session, due = excluded.due,
  after = excluded.after, error = excluded.error, woken = excluded.woken, given = excluded.given, ends = excluded.ends
