SELECT position, version, place, failures, session, due, after, error, woken, given
FROM dibs_queue_open
WHERE queue = ?1 AND place = ?2 AND due <= ?3
ORDER BY due, position
LIMIT ?4 + 0
