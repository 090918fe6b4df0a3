DELETE FROM dibs_messages WHERE stream_name = ?1 AND position < ?2
