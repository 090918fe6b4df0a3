-- ?4: types as a JSON array or NULL; ?5: correlation category or NULL; ?6 and ?7:
-- size and member of a consumer group, or NULL. The remainder is taken before the
-- absolute value, which the smallest number does not have.
SELECT global_position, stream_name, position, type, data, metadata, id, time
FROM dibs_messages
WHERE category = ?1 AND global_position BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR type IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR correlation_category = ?5)
  AND (?6 IS NULL OR abs(group_hash % ?6) = ?7)
ORDER BY global_position
LIMIT ?8 + 0
