-- Counts the messages beyond $1, or all, and those that the new table could not hold.
select count(*), coalesce(max(m.global_position), 0),
  count(*) filter (where m.position < 0),
  count(*) filter (where m.global_position < 1),
  count(*) filter (where not m.time between '0001-01-01' and '9999-12-31 23:59:59.999999'),
  count(*) filter (where m.global_position is null or m.position is null or m.time is null or m.stream_name is null or m.type is null or m.id is null),
  count(*) filter (where m.type like 'dibs:%')
from message_store.messages m
where m.global_position > $1 or $1 is null
