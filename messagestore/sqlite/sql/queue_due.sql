SELECT position, version, place, failures, session, due, after, error, woken, given, ends
FROM dibs_queue_open
WHERE queue = ?1 AND place = ?2 AND due <= ?3 AND (ends > 1) = ?4
ORDER BY due, position
LIMIT ?5 + 0
