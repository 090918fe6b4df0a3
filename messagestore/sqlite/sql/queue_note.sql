SELECT coalesce(json_extract(nullif(notes, ''), '$."' || ?3 || '"'), '') FROM dibs_queue_sessions WHERE queue = ?1 AND session = ?2
