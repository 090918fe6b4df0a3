-- The streams between two names, and the type of the last message of each that opens or closes a
-- dead letter.
SELECT l.stream_name, coalesce((
  SELECT o.type FROM dibs_messages o
  WHERE o.stream_name = l.stream_name AND o.type IN ('Parked', 'Redriven', 'dibs:Tombstone')
  ORDER BY o.position DESC
  LIMIT 1
), '')
FROM (SELECT DISTINCT stream_name FROM dibs_messages WHERE stream_name > ?1 AND stream_name < ?2) l
