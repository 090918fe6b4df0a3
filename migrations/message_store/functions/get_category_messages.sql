create or replace function message_store.get_category_messages(
  category varchar, "position" bigint default 1, batch_size bigint default 1000, correlation varchar default null,
  consumer_group_member bigint default null, consumer_group_size bigint default null, condition varchar default null
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
  command text := 'select (message).* from message_store.stored_messages stored where category = $1 and global_position >= $2 and global_position <= $7';
  size smallint;
  up_to bigint;
  parsed refcursor;
  wrong text;
begin
  if strpos(category, '-') > 0 then
    raise exception 'Must be a category: %', category;
  end if;
  position := coalesce(position, 1);
  batch_size := coalesce(batch_size, 1000);

  if strpos(correlation, '-') > 0 then
    raise exception 'Correlation must be a category (Correlation: %)', correlation;
  end if;

  wrong := case
    when (consumer_group_member is null) <> (consumer_group_size is null) then 'Consumer group member and size must be specified'
    when consumer_group_size < 1 then 'Consumer group size must not be less than 1'
    when consumer_group_member < 0 then 'Consumer group member must not be less than 0'
    when consumer_group_member >= consumer_group_size then 'Consumer group member must be less than the group size'
  end;
  if wrong is not null then
    raise exception '% (Consumer Group Member: %, Consumer Group Size: %)', wrong, consumer_group_member, consumer_group_size;
  end if;

  -- Messages that are visible may be behind one that is under way: see dibs.readable.
  if exists (select from message_store.stored_messages m where m.category = get_category_messages.category and m.global_position >= get_category_messages.position) then
    up_to := message_store.readable(category);
  end if;

  if condition is null and not debug then
    size := consumer_group_size;
    return query
    select (m.message).*
    from message_store.stored_messages m
    where m.category = get_category_messages.category and m.global_position >= get_category_messages.position and m.global_position <= up_to
      and (correlation is null or m.correlation_category = correlation)
      and (size is null or abs(m.member_hash % size) = consumer_group_member)
    order by m.global_position
    limit nullif(batch_size, -1);
    return;
  end if;

  if correlation is not null then
    command := command || ' and correlation_category = $4';
  end if;
  if consumer_group_size is not null then
    command := command || ' and abs(member_hash % $6) = $5';
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
  command := command || ' order by global_position limit nullif($3, -1)';

  if debug then
    raise notice '» get_category_messages';
    raise notice 'category ($1): %', category;
    raise notice 'position ($2): %', position;
    raise notice 'batch_size ($3): %', batch_size;
    raise notice 'correlation ($4): %', correlation;
    raise notice 'consumer_group_member ($5): %', consumer_group_member;
    raise notice 'consumer_group_size ($6): %', consumer_group_size;
    raise notice 'condition: %', condition;
    raise notice 'Generated Command: %', command;
  end if;

  if condition is not null then
    open parsed for execute command
      using category, position, batch_size, correlation, consumer_group_member, consumer_group_size::smallint, up_to;
    close parsed;
    open parsed for execute 'select case when
' || condition || '
then true end from message_store.messages'
      using category, position, batch_size, correlation, consumer_group_member, consumer_group_size::smallint, up_to;
    close parsed;
  end if;
  return query execute command
    using category, position, batch_size, correlation, consumer_group_member, consumer_group_size::smallint, up_to;
end
$$;

grant execute on function message_store.get_category_messages to message_store;
