-- The first position of a stream and the last. No row for an empty one.
SELECT min(position), max(position) FROM (
  SELECT * FROM (SELECT position FROM dibs_messages WHERE stream_name = ?1 ORDER BY position LIMIT 1)
  UNION ALL
  SELECT * FROM (SELECT position FROM dibs_messages WHERE stream_name = ?1 ORDER BY position DESC LIMIT 1)
)
HAVING count(*) > 0
