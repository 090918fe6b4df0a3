-- Whether all messages that came after position ?2 are there and of the types ?3, a JSON array.
-- It ends at the first that is of another type, or whose predecessor was removed.
SELECT NOT EXISTS (
  SELECT 1
  FROM dibs_messages m
  WHERE m.stream_name = ?1 AND m.position > ?2 AND (
    m.type NOT IN (SELECT value FROM json_each(?3))
    OR m.position > ?2 + 1 AND NOT EXISTS (
      SELECT 1 FROM dibs_messages p WHERE p.stream_name = ?1 AND p.position = m.position - 1
    )
  )
)
