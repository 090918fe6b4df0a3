INSERT INTO dibs_queues (name, category) VALUES (?1, ?2) RETURNING id
