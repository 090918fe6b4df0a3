create or replace function dibs.queue_items(queue_name text, of_category text, of_state text, from_position bigint, max_items integer)
returns table (
  "position" bigint, state text, version integer, failures integer, session bigint, until bigint, due bigint, after bigint, error text, note text,
  id uuid, stream_name text, stream_position bigint, type text, data text, metadata text, "time" bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  q constant integer := (select x.id from dibs.queues x where x.name = queue_name and x.category = of_category);
  streams constant boolean := coalesce((select x.streams from dibs.queues x where x.id = q), false);
  positions bigint[];
  h record;
begin
  if (of_state in ('waiting', 'out', 'later', 'suspended', 'held', 'dead', 'any') and from_position >= 0 and max_items between 1 and 1000) is not true then
    raise exception 'invalid state: must be waiting, out, later, suspended, held, dead or any, with a limit of 1 to 1000 items' using errcode = 'DB001', column = 'of_state';
  end if;
  select x.cursor, x.ahead into h from dibs.queue_heads x where x.queue = q order by x.version desc limit 1;
  if of_state = 'waiting' then
    return query
    select m.global_position, 'w', 0, 0, null::bigint, null::bigint, dibs.microseconds(dibs.queue_due(m.metadata)), null::bigint, null::text, null::text,
      m.id, m.stream_name, m.position, m.type, m.data::text, m.metadata::text, dibs.microseconds(m.time)
    from dibs.messages m
    where m.category = of_category and m.global_position >= greatest(from_position, coalesce(h.cursor, 0) + 1) and m.type <> 'dibs:Tombstone'
      and (m.position = 0 or not streams)
      and (m.global_position > coalesce(h.ahead, 0) or not exists (
        select from dibs.queue_log x where x.queue = q and x.position = m.global_position and x.what = 'C'
      ))
    order by m.global_position
    limit max_items;
    return;
  end if;
  if of_state = 'suspended' then -- by the index of states, as the dead: a queue of streams may have many rows more
    positions := array(
      select y.position
      from (
        select x.position from dibs.queue_open x where x.queue = q and x.state = 's' and x.position >= from_position offset 0
      ) y
      order by y.position
      limit max_items
    );
  elsif of_state = 'dead' then
    positions := array(
      select y.position
      from (
        select x.position from dibs.queue_open x where x.queue = q and x.state = 'd' and x.position >= from_position
        union all
        select x.position from dibs.queue_open x where x.queue = q and x.state = 'k' and x.position >= from_position
        offset 0
      ) y
      order by y.position
      limit max_items
    );
  else
    positions := array(
      select x.position from dibs.queue_open x
      where x.queue = q and x.position >= from_position
        and case of_state when 'out' then x.state = 'o' when 'later' then x.state = 'l' when 'held' then x.state = 'h' else x.state <> 'z' end
      order by x.position
      limit max_items
    );
  end if;
  return query
  select o.position, o.state::text, o.version, o.failures::integer, o.session, dibs.microseconds(s.until), dibs.microseconds(o.due), case when o.state = 'h' then o.after end, o.error,
    s.notes ->> (o.position || '.' || o.version),
    m.id, m.stream_name, m.position, m.type, m.data::text, m.metadata::text, dibs.microseconds(m.time)
  from unnest(positions) u (at)
  cross join lateral (select x.* from dibs.queue_open x where x.queue = q and x.position = u.at offset 0) o
  left join dibs.messages m on m.category = of_category and m.global_position = o.position
  left join dibs.queue_sessions s on s.queue = q and s.session = o.session and o.state = 'o'
  order by o.position;
end
$$;

comment on function dibs.queue_items(text, text, text, bigint, integer) is
'Open items of a queue in a state, or in any, in order of position from one on, with their messages. Those that wait are beyond the cursor.';

grant execute on function dibs.queue_items to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
