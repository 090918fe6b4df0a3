create or replace function dibs.insert_message() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if new.global_position is not null or new.time is not null then
    raise exception 'a message gets its global_position and its time when it is written' using errcode = 'generated_always';
  end if;
  new.position := message_store.write_message(new.id::varchar, new.stream_name, new.type, new.data, new.metadata, new.position - 1);
  select m.global_position, m.time at time zone 'UTC' into new.global_position, new.time
  from dibs.messages m
  where m.id = new.id;
  return new;
end
$$;

comment on function dibs.insert_message() is
'Writes the rows that are inserted into message_store.messages. A position has to be the next of the stream, which it is if it
is null.';