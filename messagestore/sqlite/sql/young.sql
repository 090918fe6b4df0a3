-- The first message of a stream in a range of positions that is of a time or later, or has a global
-- position or a higher one.
SELECT position, time, global_position FROM dibs_messages
WHERE stream_name = ?1 AND position >= ?2 AND position < ?3 AND (time >= ?4 OR global_position >= ?5)
ORDER BY position
LIMIT 1
