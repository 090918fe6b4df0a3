SELECT global_position, stream_name, category, position, type, data, metadata, group_hash, correlation_category
FROM dibs_messages
ORDER BY category, stream_name, position
