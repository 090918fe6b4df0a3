create or replace function message_store.category(stream_name varchar) returns varchar
language sql immutable
return split_part(stream_name, '-', 1)::varchar;

grant execute on function message_store.category to message_store;
