-- How far one filtered page looks, and whether there is more beyond. Messages up
-- to there are all decided: none will appear before it.
SELECT horizon, EXISTS (SELECT 1 FROM dibs_messages WHERE category = ?1 AND global_position > horizon)
FROM (
  SELECT max(global_position) AS horizon
  FROM (
    SELECT global_position FROM dibs_messages
    WHERE category = ?1 AND global_position >= ?2
    ORDER BY global_position
    LIMIT ?3
  )
)
