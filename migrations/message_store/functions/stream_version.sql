create or replace function message_store.stream_version(stream_name varchar) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return nullif(dibs.stream_version(stream_name), -1);
end
$$;

grant execute on function message_store.stream_version to message_store;
