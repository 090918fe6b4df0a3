create or replace function dibs.refuse_unlike_append(stream_name text, type text, data json) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  strict_names constant boolean := (select s.strict_names from dibs.settings s);
begin
  if strict_names and not dibs.valid_stream_name(stream_name) then
    raise exception 'invalid stream_name: must be a stream name' using column = 'stream_name';
  end if;
  -- The store's own types would make a message pass for a tombstone.
  if starts_with(type, 'dibs:') or strict_names and not dibs.valid_type(type) then
    raise exception 'invalid type: must be a message type' using column = 'type';
  end if;
  -- Clients write no data at all for an empty object.
  if strict_names and data is not null and not dibs.valid_data(data) then
    raise exception 'invalid data: must be a JSON object that can be stored' using column = 'data';
  end if;
end
$$;

comment on function dibs.refuse_unlike_append(text, text, json) is
'Raises P0001 for a message that write_message may not write; if names are strict, for any that append would refuse.';