SELECT changed, cursor, ahead, checked, paused, tokens, taken, finished, returned, buried, shape, suspects, apart FROM dibs_queues WHERE id = ?1 AND changed IS NOT NULL
