SELECT position, version, place, failures, session, due, after, error
FROM dibs_queue_open
WHERE queue = ?1 AND place = 'l' AND due <= ?2
ORDER BY due, position
LIMIT ?3 + 0
