-- The last position of a record of a trim, or of a tombstone.
SELECT coalesce(max(position), -1) FROM dibs_messages WHERE stream_name = ?1 AND type IN ('dibs:Trimmed', 'dibs:Tombstone')
