-- Changes nothing, but takes the write lock, so that the next look-up sees the state
-- that is written to.
DELETE FROM dibs_messages WHERE global_position = 0
