-- Messages of the tail that were numbered before others and committed after them.
insert into dibs.messages (category, group_hash, correlation_category, global_position, position, time, stream_name, type, id, data, metadata)
select dibs.category(m.stream_name), dibs.group_hash(m.stream_name), dibs.correlation_category(m.metadata::text::json),
  m.global_position, m.position, m.time at time zone 'UTC', m.stream_name, m.type, m.id, m.data::text::json, m.metadata::text::json
from message_store.messages m
where m.global_position > $1 and m.global_position <= $2
  and not exists (select from dibs.messages n where n.id = m.id)
