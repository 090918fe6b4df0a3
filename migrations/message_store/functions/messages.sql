create or replace view message_store.messages as
select m.global_position, m.position, m.time at time zone 'UTC' as time, m.stream_name, m.type,
  m.data::jsonb as data, m.metadata::jsonb as metadata, m.id
from dibs.messages m;

comment on view message_store.messages is 'All messages, as message-db has them. An inserted row takes the next position of its stream.';

alter view message_store.messages alter id set default gen_random_uuid();

create or replace trigger messages_insert instead of insert on message_store.messages
for each row execute function dibs.insert_message();

-- PostgreSQL passes a change of such a view on to the table.
create or replace trigger messages_append_only instead of update or delete on message_store.messages
for each row execute function dibs.refuse_change();

grant insert, select on message_store.messages to message_store;
