-- The functions that read run with the rights of their caller, so that a condition does too. It is
-- put between parentheses into the statement, as it is in message-db, and only chooses among the
-- rows that the statement would return. (A function in it may do more, if the caller may: it is
-- SQL.)
--
-- First it is parsed twice, each time in a statement that is not run: a cursor is opened for it,
-- which takes one statement and no more, and nothing is fetched. One is the statement itself. In
-- the other there is nothing around the condition but "case when", a line end, and "then". A
-- condition that parses there leaves no quote, comment or parenthesis open, and closes none that
-- it did not open. So in the statement itself the parenthesis before it is closed by the one after
-- it, and by no other. Between those two there may be one expression, a list of them, or a query;
-- and of these only the one expression may follow "when".
--
-- The row that it is about is called messages, and has message-db's columns and no others: any
-- other name does not pass the second time. Texts are compared by the rules of this database, as
-- they are there, and not by those of our columns.
--
-- Without a condition, and if there are no notices to give, statements are static: a plan is made
-- once for a session.
create or replace function message_store.get_stream_messages(
  stream_name varchar, "position" bigint default 0, batch_size bigint default 1000, condition varchar default null
) returns setof message_store.message
language plpgsql volatile
set search_path = pg_catalog, message_store, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  debug constant boolean := coalesce('on' in (current_setting('message_store.debug_get', true), current_setting('message_store.debug', true)), false);
  command text := 'select (message).* from message_store.stored_messages stored where stream_name = $1 and position >= $2';
  parsed refcursor;
begin
  if strpos(stream_name, '-') > 0 is not true then
    raise exception 'Must be a stream name: %', stream_name;
  end if;
  position := coalesce(position, 0);
  batch_size := coalesce(batch_size, 1000);

  if condition is null and not debug then
    return query
    select (m.message).*
    from message_store.stored_messages m
    where m.stream_name = get_stream_messages.stream_name and m.position >= get_stream_messages.position
    order by m.position
    limit nullif(batch_size, -1);
    return;
  end if;

  if condition is not null then
    -- A session may close for itself what the owner has opened.
    if (select s.sql_condition from message_store.settings s) is not true
      or coalesce(nullif(current_setting('message_store.sql_condition', true), ''), 'on') <> 'on'
    then
      raise exception 'Retrieval with SQL condition is not activated';
    end if;
    command := command || ' and exists (select from (select stored.global_position, stored.position, stored.time,
      stored.stream_name collate "default" as stream_name, stored.type collate "default" as type,
      stored.data, stored.metadata, stored.id) messages where true and (' || condition || '))';
  end if;
  command := command || ' order by position limit nullif($3, -1)';

  if debug then
    raise notice '» get_stream_messages';
    raise notice 'stream_name ($1): %', stream_name;
    raise notice 'position ($2): %', position;
    raise notice 'batch_size ($3): %', batch_size;
    raise notice 'condition ($4): %', condition;
    raise notice 'Generated Command: %', command;
  end if;

  if condition is not null then
    open parsed for execute command using stream_name, position, batch_size;
    close parsed;
    open parsed for execute 'select case when
' || condition || '
then true end from message_store.messages' using stream_name, position, batch_size;
    close parsed;
  end if;
  return query execute command using stream_name, position, batch_size;
end
$$;

grant execute on function message_store.get_stream_messages to message_store;
