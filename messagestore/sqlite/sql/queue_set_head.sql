UPDATE dibs_queues
SET changed = ?2, cursor = ?3, ahead = ?4, checked = ?5, paused = ?6, tokens = ?7, taken = ?8, finished = ?9, returned = ?10, buried = ?11,
  shape = ?12, suspects = ?13, apart = ?14
WHERE id = ?1
