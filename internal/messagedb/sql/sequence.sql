-- The last number that was drawn of message-db's sequence, if there is one that draws
-- one by one.
select coalesce(s.last_value, 0)
from pg_sequences s
where format('%I.%I', s.schemaname, s.sequencename) = pg_get_serial_sequence('message_store.messages', 'global_position')
  and s.cache_size = 1 and s.increment_by > 0
