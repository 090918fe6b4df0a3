-- The last message of each stream of a category.
SELECT global_position, stream_name, max(position), type, data, metadata, id, time
FROM dibs_messages
WHERE category = ?1
GROUP BY stream_name
