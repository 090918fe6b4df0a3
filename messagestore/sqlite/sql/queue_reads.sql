SELECT EXISTS (SELECT 1 FROM dibs_queues WHERE category = ?1 AND removed = 0)
