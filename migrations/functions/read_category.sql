create or replace function dibs.read_category(
  category text, from_position bigint default 0, max_messages integer default 1000,
  types text[] default null, correlation text default null, group_size integer default null, group_member integer default null,
  up_to bigint default null
)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz,
  more boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  found_messages integer := 0;
  last bigint;
  newest bigint;
  first_mark json;
begin
  -- The most frequent answer, by one expression: each costs as much as a message does.
  select w.global_position into newest
  from dibs.messages w
  where w.category = read_category.category and w.global_position >= from_position and w.global_position <= coalesce(up_to, 9223372036854775807)
  order by w.global_position desc
  limit 1;
  if newest is null and from_position >= 0 and max_messages between 1 and 10000 and (types is null or cardinality(types) <= 1000)
    and (group_size is null and group_member is null or group_size between 1 and 1024 and group_member between 0 and group_size - 1)
  then
    global_position := from_position;
    more := false;
    return next;
    return;
  end if;

  if types is null and correlation is null and group_size is null and group_member is null
    and from_position >= 0 and max_messages between 1 and 10000
  then
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time, null::boolean
    from dibs.messages m
    where m.category = read_category.category and m.global_position >= from_position and m.global_position <= coalesce(up_to, 9223372036854775807)
      and (up_to is not null or not exists (select from dibs.fences f where f.category = read_category.category and f.shared))
    order by m.global_position
    limit max_messages;
    get diagnostics found_messages = row_count;
    if found_messages = 0 then -- it is written to in callers' transactions
      return query select * from dibs.read_shared_category(category, from_position, max_messages, types, correlation, group_size, group_member);
      return;
    end if;
    global_position := least(newest, 9223372036854775806) + 1;
    more := found_messages = max_messages;
    if more then
      -- The last of them, and the one after it: the index alone tells.
      select least(min(p.global_position), 9223372036854775806) + 1, count(*) > 1 into global_position, more
      from (
        select w.global_position
        from dibs.messages w
        where w.category = read_category.category and w.global_position >= from_position and w.global_position <= coalesce(up_to, 9223372036854775807)
        order by w.global_position
        offset found_messages - 1
        limit 2
      ) p;
    end if;
    return next;
    return;
  end if;

  if (from_position >= 0 and max_messages between 1 and 10000) is not true then
    perform dibs.refuse_invalid_page(from_position, max_messages);
  end if;
  if cardinality(types) > 1000 then
    raise exception 'invalid types: must be at most 1000' using errcode = 'DB001', column = 'types';
  end if;
  if group_size not between 1 and 1024 or (group_size is null) <> (group_member is null) or group_member < 0 or group_member >= group_size then
    raise exception 'invalid group: the size must be between 1 and 1024, and the member at least 0 and less than the size'
      using errcode = 'DB001', column = 'group_member';
  end if;

  if up_to is null and exists (select from dibs.fences f where f.category = read_category.category and f.shared) then
    return query select * from dibs.read_shared_category(category, from_position, max_messages, types, correlation, group_size, group_member);
    return;
  end if;
  up_to := coalesce(up_to, 9223372036854775807);

  -- At most 10000 messages are looked at, however few of them are wanted.
  for id, stream_name, type, position, global_position, data, metadata, time in
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from (
      select * from dibs.messages w
      where w.category = read_category.category and w.global_position >= from_position and w.global_position <= up_to
      order by w.global_position
      limit 10000
    ) m
    where (group_size is null or abs(m.group_hash % group_size) = group_member)
      and (coalesce(cardinality(types), 0) = 0 or m.type = any (types))
      and (correlation is null or m.correlation_category = correlation)
    order by m.global_position
    limit max_messages
  loop
    return next;
    found_messages := found_messages + 1;
  end loop;

  if found_messages = max_messages then
    last := global_position;
    more := exists (
      select from dibs.messages w where w.category = read_category.category and w.global_position > last and w.global_position <= up_to
    );
  else
    -- It has looked at 10000, or at all there are, of which no two have one position.
    last := newest;
    if newest - from_position >= 10000 then
      select w.global_position into last
      from dibs.messages w
      where w.category = read_category.category and w.global_position >= from_position
      order by w.global_position
      offset 9999
      limit 1;
      last := coalesce(last, newest);
    end if;
    more := coalesce(last < newest, false);
  end if;

  if found_messages > 0 then
    id := null; stream_name := null; type := null; position := null; metadata := null; time := null;
  end if;
  if last is not null then
    select w.global_position, json_build_object(
      'id', w.id, 'stream', w.stream_name, 'position', w.position, 'globalPosition', w.global_position,
      'time', case when isfinite(w.time) then (extract(epoch from w.time) * 1000000)::bigint end
    ) into newest, first_mark
    from dibs.messages w
    where w.category = read_category.category and w.global_position >= from_position
    order by w.global_position
    limit 1;
    if newest = last then
      data := json_build_array(first_mark);
    else
      select json_build_array(first_mark, json_build_object(
        'id', w.id, 'stream', w.stream_name, 'position', w.position, 'globalPosition', w.global_position,
        'time', case when isfinite(w.time) then (extract(epoch from w.time) * 1000000)::bigint end
      )) into data
      from dibs.messages w
      where w.category = read_category.category and w.global_position >= last
      order by w.global_position
      limit 1;
    end if;
  end if;
  global_position := case when last is null then from_position else least(last, 9223372036854775806) + 1 end;
  return next;
end
$$;

comment on function dibs.read_category(text, bigint, integer, text[], text, integer, integer, bigint) is
'Messages of one category from a global position on, that one included, in order: at most max_messages, which is 1 to 10000.
from_position is 0, or from the page before. No message comes later at a position below one of these: a message behind one
that is under way waits for that. up_to is for
the owner''s functions.

With types, at most 1000, only those of one of these; with correlation, only those with a correlation stream of this category; with a
group, only the member''s, by |group_hash| mod size. A call then looks at no more than 10000 messages.

After the messages comes one row without (its id is null): its global_position is where to go on, past all that was looked
at, and more says whether there is anything. With types, a correlation or a group, its data are the first and the last message
looked at: [{"id", "stream", "position", "globalPosition", "time" in microseconds since 1970}, ...], or null if there was none.';

grant execute on function dibs.read_category to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
