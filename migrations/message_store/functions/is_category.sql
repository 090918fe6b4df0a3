create or replace function message_store.is_category(stream_name varchar) returns boolean
language sql immutable
return coalesce(strpos(stream_name, '-') = 0, true);

grant execute on function message_store.is_category to message_store;
