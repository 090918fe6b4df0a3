INSERT INTO dibs_queue_tickets (queue, session, want, until) VALUES (?1, ?2, ?3, ?4) RETURNING ticket
