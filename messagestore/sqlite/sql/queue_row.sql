SELECT position, version, place, failures, session, due, after, error, woken, given, ends FROM dibs_queue_open WHERE queue = ?1 AND position = ?2
