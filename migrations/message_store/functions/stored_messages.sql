-- The functions that read take their rows from here, with the rights of their caller: so this is
-- in the schema that the role may use. message is the row that they return, in which data is as it
-- was written, and not as jsonb has it.
create or replace view message_store.stored_messages as
select m.global_position, m.position, m.time at time zone 'UTC' as time, m.stream_name, m.type,
  m.data::jsonb as data, m.metadata::jsonb as metadata, m.id,
  m.category, m.correlation_category,
  -- A stream without an identifier is no member's. That of an empty identifier is
  -- hash_64(''), where ours is that of the category.
  case
    when m.stream_name = m.category then null
    when m.stream_name = m.category || '-' or starts_with(m.stream_name, m.category || '-+') then -3162216497309240828
    else m.group_hash
  end as member_hash,
  row(m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
    m.data::varchar, m.metadata::varchar, m.time at time zone 'UTC')::message_store.message as message
from dibs.messages m;

comment on view message_store.stored_messages is 'The view messages, with the columns by which functions find messages.';

-- PostgreSQL passes a change of such a view on to the table.
create or replace trigger messages_append_only instead of insert or update or delete on message_store.stored_messages
for each row execute function dibs.refuse_change();

grant select on message_store.stored_messages to message_store;
