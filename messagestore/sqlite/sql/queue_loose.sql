SELECT DISTINCT h.after
FROM dibs_queue_open h INDEXED BY dibs_queue_open_linked
WHERE h.queue = ?1 AND h.after > 0 AND h.place <> 'o'
  AND (h.after = h.position OR NOT EXISTS (
    SELECT 1 FROM dibs_queue_open b WHERE b.queue = h.queue AND b.position = h.after AND (b.place <> 'd' OR b.after > 0)
  ))
ORDER BY h.after
LIMIT ?2 + 0
