SELECT id, name, category FROM dibs_queues ORDER BY name
