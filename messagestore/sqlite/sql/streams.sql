SELECT DISTINCT stream_name FROM dibs_messages WHERE category = ?1 AND stream_name > ?2 ORDER BY stream_name LIMIT ?3 + 0
