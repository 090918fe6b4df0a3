-- How many streams others deleted from. It does not matter to an adoption.
select count(*)
from (
  select from message_store.messages
  group by stream_name
  having max(position) <> count(*) - 1 -- or more, if the first is not at 0
) s
