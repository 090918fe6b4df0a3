-- ?1: the categories, as a JSON array. The index is looked into once for each.
SELECT c.key, coalesce((SELECT m.global_position FROM dibs_messages m WHERE m.category = c.value ORDER BY m.global_position DESC LIMIT 1), 0)
FROM json_each(?1) c
