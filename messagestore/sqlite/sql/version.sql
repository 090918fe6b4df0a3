-- Not max(position): see append.sql.
SELECT coalesce((SELECT position FROM dibs_messages WHERE stream_name = ?1 ORDER BY position DESC LIMIT 1), -1)
