SELECT global_position, stream_name, position, type, data, metadata, id, time
FROM dibs_messages
WHERE stream_name = ?1 AND position = ?2
