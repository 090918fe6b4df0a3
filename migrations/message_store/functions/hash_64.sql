create or replace function message_store.hash_64(value varchar) returns bigint
language sql immutable
return ('x' || left(md5(value), 16))::bit(64)::bigint;

grant execute on function message_store.hash_64 to message_store;
