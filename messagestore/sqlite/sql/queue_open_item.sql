-- The first message of a stream in a range of positions that a queue of its category, ?4, has not finished; but for a queue of parked
-- messages, whose cursor is 2^62, if ?5 is set.
SELECT m.position, q.name
FROM dibs_queues q
JOIN dibs_messages m ON m.stream_name = ?1 AND m.position >= ?2 AND m.position < ?3 AND m.type <> 'dibs:Tombstone'
WHERE q.category = ?4 AND q.removed = 0 AND (NOT ?5 OR q.cursor < 4611686018427387904)
  AND (
    m.global_position > q.cursor
    OR EXISTS (SELECT 1 FROM dibs_queue_open o WHERE o.queue = q.id AND o.position = m.global_position AND o.place <> 'z')
  )
ORDER BY m.position, q.name
LIMIT 1
