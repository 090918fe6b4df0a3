SELECT id, name, category FROM dibs_queues WHERE removed = 0 ORDER BY name
