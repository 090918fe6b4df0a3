create or replace function message_store.cardinal_id(stream_name varchar) returns varchar
language sql immutable
return split_part(message_store.id(stream_name), '+', 1)::varchar;

grant execute on function message_store.cardinal_id to message_store;
