-- ?1 to ?3: the keys of a row, each stream, type, category or NULL; ?4: category or
-- NULL; ?5: a text in the first name; ?6: the order; ?7: most rows, -1 for all.
--
-- The last row is about them all: how many messages were counted, and how many rows
-- there would be without ?7.
WITH counted AS MATERIALIZED (
  SELECT
    CASE ?1 WHEN 'stream' THEN stream_name WHEN 'type' THEN type WHEN 'category' THEN category END AS name1,
    CASE ?2 WHEN 'stream' THEN stream_name WHEN 'type' THEN type WHEN 'category' THEN category END AS name2,
    CASE ?3 WHEN 'stream' THEN stream_name WHEN 'type' THEN type WHEN 'category' THEN category END AS name3,
    count(*) AS messages,
    sum(length(CAST(coalesce(data, '') AS BLOB)) + length(CAST(coalesce(metadata, '') AS BLOB))) AS bytes,
    min(time) AS first_time,
    max(time) AS last_time,
    max(position) AS last_position,
    max(global_position) AS last_global_position
  FROM dibs_messages
  WHERE ?4 IS NULL OR category = ?4
  GROUP BY 1, 2, 3
)
SELECT * FROM (
  SELECT FALSE, name1, name2, name3, messages, bytes, first_time, last_time, last_position, last_global_position
  FROM counted
  WHERE instr(name1, ?5) > 0
  ORDER BY
    CASE ?6 WHEN 'messages' THEN messages WHEN 'bytes' THEN bytes WHEN 'last' THEN last_time END DESC,
    name1, name2, name3
  LIMIT ?7 + 0
)
UNION ALL
SELECT
  TRUE, NULL, NULL, NULL,
  (SELECT coalesce(sum(messages), 0) FROM counted),
  (SELECT count(*) FROM counted WHERE instr(name1, ?5) > 0),
  0, 0, 0, 0
