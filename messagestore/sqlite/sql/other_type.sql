-- Whether a message of a stream below a position is of another type than ?3.
SELECT EXISTS (SELECT 1 FROM dibs_messages WHERE stream_name = ?1 AND position < ?2 AND type <> ?3)
