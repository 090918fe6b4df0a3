SELECT DISTINCT h.after
FROM dibs_queue_open h
WHERE h.queue = ?1 AND h.place IN ('h', 'z')
  AND NOT EXISTS (SELECT 1 FROM dibs_queue_open b WHERE b.queue = h.queue AND b.position = h.after AND b.place <> 'd')
ORDER BY h.after
LIMIT ?2 + 0
