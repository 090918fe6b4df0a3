DELETE FROM dibs_queue_tickets WHERE queue = ?1
