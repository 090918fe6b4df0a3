SELECT position, version, place, failures, session, due, after, error
FROM dibs_queue_open
WHERE queue = ?1 AND after = ?2 AND place IN ('h', 'z')
ORDER BY position
