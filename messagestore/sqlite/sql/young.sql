-- The first message of a stream in a range of positions that is of a time or later.
SELECT position, time FROM dibs_messages
WHERE stream_name = ?1 AND position >= ?2 AND position < ?3 AND time >= ?4
ORDER BY position
LIMIT 1
