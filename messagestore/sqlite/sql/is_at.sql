-- Whether the message at position ?2 has the id ?3.
SELECT EXISTS (SELECT 1 FROM dibs_messages m WHERE m.stream_name = ?1 AND m.position = ?2 AND m.id = ?3)
