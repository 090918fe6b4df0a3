-- The checks come in message-db's order, which clients see by the errors.
create or replace function message_store.write_message(
  id varchar, stream_name varchar, type varchar, data jsonb, metadata jsonb default null, expected_version bigint default null
) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  version bigint;
begin
  if current_setting('dibs.staged', true) = 'true' then
    perform dibs.refuse_staged(array[stream_name]);
  end if;
  perform dibs.refuse_unlike_append(stream_name, type, data::json);
  perform message_store.acquire_lock(stream_name);
  perform dibs.refuse_removed(message_store.category(stream_name));

  version := dibs.stream_version(stream_name);
  if expected_version <> version then
    raise exception 'Wrong expected version: % (Stream: %, Stream Version: %)', expected_version, stream_name, version;
  end if;
  if version >= 0 then
    perform dibs.begin_again(stream_name);
  end if;

  insert into dibs.messages (category, group_hash, correlation_category, id, stream_name, position, type, data, metadata, time)
  values (dibs.category(write_message.stream_name), dibs.group_hash(write_message.stream_name), dibs.correlation_category(write_message.metadata::json),
    write_message.id::uuid, write_message.stream_name, version + 1, write_message.type,
    write_message.data::json, write_message.metadata::json, now());

  if 'on' in (current_setting('message_store.debug_write', true), current_setting('message_store.debug', true)) then
    raise notice '» write_message';
    raise notice 'id ($1): %', id;
    raise notice 'stream_name ($2): %', stream_name;
    raise notice 'type ($3): %', type;
    raise notice 'data ($4): %', data;
    raise notice 'metadata ($5): %', metadata;
    raise notice 'expected_version ($6): %', expected_version;
    raise notice '_stream_version: %', version;
    raise notice '_next_position: %', version + 1;
  end if;
  return version + 1;
end
$$;

grant execute on function message_store.write_message to message_store;
