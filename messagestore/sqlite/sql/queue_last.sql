SELECT global_position, stream_name, position, type, data, metadata, id, time
FROM dibs_messages
WHERE stream_name = ?1 AND global_position <= ?2
ORDER BY position DESC
LIMIT 1
