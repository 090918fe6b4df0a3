-- The lock of dibs.lock_category, and not one by the hash, which is only the answer that
-- message-db gives.
create or replace function message_store.acquire_lock(stream_name varchar) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  category constant varchar := message_store.category(stream_name);
  hash constant bigint := message_store.hash_64(category);
begin
  perform dibs.lock_category(category);

  if 'on' in (current_setting('message_store.debug_write', true), current_setting('message_store.debug', true)) then
    raise notice '» acquire_lock';
    raise notice 'stream_name: %', stream_name;
    raise notice '_category: %', category;
    raise notice '_category_name_hash: %', hash;
  end if;
  return hash;
end
$$;

grant execute on function message_store.acquire_lock to message_store;
