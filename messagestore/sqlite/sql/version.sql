SELECT coalesce(max(position), -1) FROM dibs_messages WHERE stream_name = ?1
