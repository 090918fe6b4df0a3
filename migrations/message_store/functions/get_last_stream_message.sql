create or replace function message_store.get_last_stream_message(stream_name varchar, type varchar default null)
returns setof message_store.message
language plpgsql volatile
set search_path = pg_catalog, message_store, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  if 'on' in (current_setting('message_store.debug_get', true), current_setting('message_store.debug', true)) then
    raise notice '» get_last_message';
    raise notice 'stream_name ($1): %', stream_name;
    raise notice 'type ($2): %', type;
    raise notice 'Generated Command: %', 'select (message).* from message_store.stored_messages stored where stream_name = $1'
      || case when type is null then '' else ' and type = $2' end || ' order by position desc limit 1';
  end if;

  return query
  select (m.message).*
  from message_store.stored_messages m
  where m.stream_name = get_last_stream_message.stream_name
    and (get_last_stream_message.type is null or m.type = get_last_stream_message.type)
  order by m.position desc
  limit 1;
end
$$;

grant execute on function message_store.get_last_stream_message to message_store;
