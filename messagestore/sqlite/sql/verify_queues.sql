-- What is not as it should be in the state of queues: the category, the stream, the position, the global position, what was
-- expected, and what was found. A queue of parked messages has a cursor of 2^62.
WITH broken (queue, position, expected, found) AS (
  SELECT q.id, 0, 'a cursor that is not ahead of ' || q.category, q.cursor
  FROM dibs_queues q
  WHERE q.cursor <> 4611686018427387904 AND q.cursor > coalesce((SELECT max(m.global_position) FROM dibs_messages m WHERE m.category = q.category), 0)
  UNION ALL
  SELECT o.queue, o.position, 'no row beyond the cursor at ' || q.cursor, 'one'
  FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue
  WHERE o.position > q.cursor
  UNION ALL
  SELECT o.queue, o.position, 'a message', 'none'
  FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue
  WHERE o.place <> 'z' AND q.cursor <> 4611686018427387904 AND NOT EXISTS (SELECT 1 FROM dibs_messages m WHERE m.global_position = o.position AND m.category = q.category)
  UNION ALL
  SELECT o.queue, o.position, 'a session that has it', o.session
  FROM dibs_queue_open o
  WHERE o.place = 'o' AND NOT EXISTS (SELECT 1 FROM dibs_queue_sessions s WHERE s.queue = o.queue AND s.session = o.session)
  UNION ALL
  SELECT o.queue, o.position, 'a date', 'none'
  FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue
  WHERE (o.place = 'l' OR o.place = 's' AND q.shape = 2) AND o.due <= 0
  UNION ALL
  SELECT o.queue, o.position, 'the first message of its stream, out, later, suspended or dead', o.place || ' at ' || m.position
  FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue JOIN dibs_messages m ON m.global_position = o.position
  WHERE q.shape = 2 AND (m.position > 0 OR o.place IN ('h', 'z'))
  UNION ALL
  SELECT o.queue, o.position, 'no row that is suspended or was woken', o.place || ' woken by ' || o.woken
  FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue
  WHERE q.shape <> 2 AND (o.place = 's' AND q.cursor <> 4611686018427387904 OR o.woken <> 0)
  UNION ALL
  SELECT o.queue, o.position, 'another of its stream that it is behind', o.after
  FROM dibs_queue_open o
  LEFT JOIN dibs_messages m ON m.global_position = o.position
  LEFT JOIN dibs_messages b ON b.global_position = o.after
  WHERE CASE o.place
      WHEN 'o' THEN o.after NOT IN (0, o.position)
      WHEN 'h' THEN o.after IN (0, o.position)
      WHEN 'z' THEN o.after = 0
      WHEN 'l' THEN o.after > 0
    END OR o.after > 0 AND b.stream_name <> m.stream_name
  UNION ALL
  SELECT o.queue, max(o.position), 'one item of its stream that is out or later', count(*)
  FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue JOIN dibs_messages m ON m.global_position = o.position
  WHERE q.shape <> 2 AND o.place IN ('o', 'l')
  GROUP BY o.queue, m.stream_name
  HAVING count(*) > 1
  UNION ALL
  SELECT o.queue, o.position, 'failures up to its version, ' || o.version, o.failures
  FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue
  WHERE o.failures NOT BETWEEN 0 AND CASE WHEN q.cursor = 4611686018427387904 THEN 32767 ELSE o.version END
  UNION ALL
  SELECT o.queue, o.position, 'a log of what ended the ' || o.version || ' versions before', o.before || ' entries before, and ' || o.beyond || ' of later ones'
  FROM (
    SELECT o.queue, o.position, o.version, q.shape = 2 AS streams, -- whose turns have no log
      (SELECT count(*) FROM dibs_queue_log l WHERE l.queue = o.queue AND l.position = o.position AND l.version < o.version) AS before,
      (SELECT count(*) FROM dibs_queue_log l WHERE l.queue = o.queue AND l.position = o.position AND l.version >= o.version + (o.place = 'z')) AS beyond
    FROM dibs_queue_open o JOIN dibs_queues q ON q.id = o.queue
  ) o
  WHERE o.before <> o.version AND NOT o.streams OR o.beyond > 0
  UNION ALL
  SELECT l.queue, l.position, 'a log without a gap up to version ' || max(l.version), count(*) || ' entries'
  FROM dibs_queue_log l JOIN dibs_queues q ON q.id = l.queue AND q.shape <> 2
  GROUP BY l.queue, l.position
  HAVING count(*) <> max(l.version) + 1
  UNION ALL
  SELECT l.queue, l.position, 'no log beyond the cursor at ' || q.cursor || ' but of what was cancelled', 'one'
  FROM dibs_queue_log l JOIN dibs_queues q ON q.id = l.queue
  WHERE l.position > q.cursor AND l.what <> 'C'
)
SELECT q.category, coalesce(m.stream_name, ''), coalesce(m.position, 0), b.position, 'queue ' || q.name || ': ' || b.expected, b.found
FROM broken b
JOIN dibs_queues q ON q.id = b.queue
LEFT JOIN dibs_messages m ON m.global_position = b.position
ORDER BY q.name, b.position
