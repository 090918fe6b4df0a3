-- What the logs of the queues of a category, ?2, have of a stream.
DELETE FROM dibs_queue_log
WHERE queue IN (SELECT id FROM dibs_queues WHERE category = ?2)
  AND position IN (SELECT global_position FROM dibs_messages WHERE stream_name = ?1)
