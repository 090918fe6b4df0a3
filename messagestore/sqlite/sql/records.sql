-- Whether a stream has the records of trims, or of forgotten keys.
SELECT EXISTS (SELECT 1 FROM dibs_messages WHERE stream_name = ?1 AND type IN ('dibs:Trimmed', 'dibs:Forgotten'))
