SELECT global_position, stream_name, position, type, data, metadata, id, time
FROM dibs_messages
WHERE category = ?1 AND global_position >= ?2
ORDER BY global_position
LIMIT ?3 + 0
