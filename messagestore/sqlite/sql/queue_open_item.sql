-- The first message of a stream in a range of positions that a queue of its category, ?4, has not finished.
SELECT m.position, q.name
FROM dibs_queues q
JOIN dibs_messages m ON m.stream_name = ?1 AND m.position >= ?2 AND m.position < ?3 AND m.type <> 'dibs:Tombstone'
WHERE q.category = ?4 AND q.removed = 0
  AND (
    m.global_position > q.cursor
    OR EXISTS (SELECT 1 FROM dibs_queue_open o WHERE o.queue = q.id AND o.position = m.global_position AND o.place <> 'z')
  )
ORDER BY m.position, q.name
LIMIT 1
