INSERT INTO dibs_queues (name, category)
SELECT ?1, ?2 WHERE (SELECT count(*) FROM dibs_queues WHERE category = ?2 AND removed = 0) < ?3
RETURNING id
