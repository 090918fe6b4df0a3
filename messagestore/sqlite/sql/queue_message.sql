SELECT global_position, stream_name, position, type, data, metadata, id, time
FROM dibs_messages
WHERE global_position = ?1 AND category = ?2
