SELECT ticket, session, want, until FROM dibs_queue_tickets WHERE queue = ?1 ORDER BY ticket
