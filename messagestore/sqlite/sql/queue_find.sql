SELECT id, category, removed <> 0 FROM dibs_queues WHERE name = ?1
