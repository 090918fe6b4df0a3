UPDATE dibs_queues SET removed = ?2, changed = NULL, cursor = 0, ahead = 0 WHERE id = ?1
