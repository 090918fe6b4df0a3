SELECT changed, cursor, ahead, checked, paused, tokens, taken, finished, returned, buried FROM dibs_queues WHERE id = ?1 AND changed IS NOT NULL
