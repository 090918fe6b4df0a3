DELETE FROM dibs_queues WHERE id = ?1
