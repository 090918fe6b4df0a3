-- ?1: what the name holds. The index is looked into once for each category.
WITH RECURSIVE found (category) AS (
  SELECT min(category) FROM dibs_messages
  UNION ALL
  SELECT (SELECT min(m.category) FROM dibs_messages m WHERE m.category > found.category)
  FROM found
  WHERE found.category IS NOT NULL
)
SELECT category FROM found WHERE category IS NOT NULL AND instr(category, ?1) > 0 ORDER BY category
