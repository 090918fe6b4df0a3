-- How many streams others deleted from. It does not matter to an adoption.
select count(*)
from (
  select from message_store.messages
  group by stream_name
  having min(position) <> 0 or max(position) <> count(*) - 1
) s
