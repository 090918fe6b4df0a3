-- Changes nothing, but takes the write lock, so that what is looked up next is
-- what is written to.
DELETE FROM dibs_messages WHERE global_position = 0
