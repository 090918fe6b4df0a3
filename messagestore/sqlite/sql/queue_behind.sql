SELECT position, version, place, failures, session, due, after, error, woken, given, ends
FROM dibs_queue_open INDEXED BY dibs_queue_open_linked -- not by the key, for the order: it goes through all rows
WHERE queue = ?1 AND after = ?2 AND after > 0 AND place <> 'o'
ORDER BY position
