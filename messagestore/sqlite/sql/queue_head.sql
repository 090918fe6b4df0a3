SELECT changed, cursor, ahead, checked, paused, tokens, taken, finished, returned, buried, shape FROM dibs_queues WHERE id = ?1 AND changed IS NOT NULL
