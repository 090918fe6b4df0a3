-- Adds one message if its stream is at the expected version (-2: at any). No row back says that it is not, or that the id is recorded: which of them
-- is looked up then, so that the usual case is one statement.
--
-- The version is the last entry of the index. max(position) would be the same, but
-- within an expression SQLite finds it by going through the whole stream.
INSERT INTO dibs_messages
  (stream_name, category, position, type, data, metadata, id, group_hash, correlation_category, time)
SELECT ?1, ?2, version + 1, ?4, ?5, ?6, ?7, ?8, ?9, ?10
FROM (
  SELECT coalesce((SELECT position FROM dibs_messages WHERE stream_name = ?1 ORDER BY position DESC LIMIT 1), -1) AS version
)
WHERE ?3 IN (version, -2)
ON CONFLICT DO NOTHING
RETURNING position, global_position
