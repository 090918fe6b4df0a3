create or replace function message_store.id(stream_name varchar) returns varchar
language sql immutable
return case when strpos(stream_name, '-') > 0 then substr(stream_name, strpos(stream_name, '-') + 1)::varchar end;

grant execute on function message_store.id to message_store;
