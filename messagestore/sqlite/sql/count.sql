-- ?3: types as a JSON array or NULL; ?4: correlation category or NULL; ?5 and ?6:
-- size and member of a consumer group, or NULL; ?7: where to stop.
SELECT count(*) FROM (
  SELECT 1
  FROM dibs_messages
  WHERE category = ?1 AND global_position >= ?2
    AND (?3 IS NULL OR type IN (SELECT value FROM json_each(?3)))
    AND (?4 IS NULL OR correlation_category = ?4)
    AND (?5 IS NULL OR abs(group_hash % ?5) = ?6)
  LIMIT ?7 + 0
)
