SELECT position, version, place, failures, session, due, after, error
FROM dibs_queue_open
WHERE queue = ?1 AND position >= ?2 AND place = ?3
ORDER BY position
LIMIT ?4 + 0
