create or replace function message_store.message_store_version() returns varchar
language sql volatile
return '1.3.0'::varchar;

grant execute on function message_store.message_store_version to message_store;
