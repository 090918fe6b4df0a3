-- The first and the last message that one filtered page looks at, and whether there is
-- more beyond. Messages up to the last are all decided: none will appear before it.
SELECT m.id, m.stream_name, m.position, m.global_position, m.time,
  EXISTS (SELECT 1 FROM dibs_messages WHERE category = ?1 AND global_position > last)
FROM (
  SELECT min(global_position) AS first, max(global_position) AS last
  FROM (
    SELECT global_position FROM dibs_messages
    WHERE category = ?1 AND global_position >= ?2
    ORDER BY global_position
    LIMIT ?3 + 0
  )
)
JOIN dibs_messages m ON m.global_position IN (first, last)
