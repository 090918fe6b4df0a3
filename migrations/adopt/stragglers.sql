-- Messages of the tail that were numbered before others and committed after them.
insert into dibs.messages (global_position, position, time, stream_name, type, id, data, metadata)
select m.global_position, m.position, m.time at time zone 'UTC', m.stream_name, m.type, m.id, m.data::text::json, m.metadata::text::json
from message_store.messages m
where m.global_position > $1 and m.global_position <= $2
  and not exists (select from dibs.messages n where n.id = m.id)
