-- The last messages of the streams of a category, if they are older than a time, from a global position on. The last
-- message of the category is not among them.
SELECT m.global_position, m.stream_name, m.position, m.type, m.data, m.metadata, m.id, m.time
FROM dibs_messages m
WHERE m.category = ?1 AND m.global_position >= ?2 AND m.time < ?3
  AND m.global_position < (SELECT max(e.global_position) FROM dibs_messages e WHERE e.category = ?1)
  AND NOT EXISTS (SELECT 1 FROM dibs_messages l WHERE l.stream_name = m.stream_name AND l.position > m.position)
ORDER BY m.global_position
LIMIT ?4 + 0
