SELECT id, category FROM dibs_queues WHERE name = ?1
