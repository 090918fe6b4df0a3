-- A page of a queue of items behind those that a take has looked at, from the cursor on. Most of it is held, behind items that are out or
-- held already, so it is long, and no body is read but of what is offered. It ends with the last offer that is wanted, so each
-- message is placed once, in the order of the category.
create or replace function dibs.queue_ahead(
  q integer, of_category text, me bigint, now timestamptz, low bigint, up_to bigint, total integer, size integer, cancelled bigint[],
  out positions bigint[], out ids uuid[], out streams text[], out stream_positions bigint[], out types text[], out data text[], out metadata text[],
  out times bigint[], out holds integer, out soon timestamptz, out high bigint, out more boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_variable
begin
  with page as (
    select x.global_position as at, x.stream_name, x.position, x.type,
      case when strpos(x.metadata::text, '"dueAt"') > 0 then dibs.queue_due(x.metadata) end as due
    from dibs.messages x
    where x.category = of_category and x.global_position > low and x.global_position <= coalesce(up_to, 9223372036854775807)
      and (up_to is not null or not exists (select from dibs.fences f where f.category = of_category and f.shared))
    order by x.global_position
    limit size
  ), met as (
    select x.*, lag(x.position) over w = x.position - 1 as follows, lag(x.at) over w as last, lag(x.type) over w as last_type
    from page x
    window w as (partition by x.stream_name order by x.position)
  ), placed as (
    select x.at, x.due, case when x.follows then case when x.last_type <> 'dibs:Tombstone' then x.last end else b.before end as before
    from met x
    left join lateral (
      select z.global_position as before
      from dibs.messages z
      where x.position > 0 and x.follows is not true and z.stream_name = x.stream_name and z.position = x.position - 1 and z.type <> 'dibs:Tombstone'
        and exists (select from dibs.queue_open b where b.queue = q and b.position = z.global_position and (b.state <> 'd' or b.after is not null) offset 0)
      offset 0
    ) b on true
    where x.type <> 'dibs:Tombstone'
  ), counted as (
    select x.*, y.state, count(*) filter (where y.state = 'o') over (order by x.at) as so_far
    from placed x
    cross join lateral (
      select case when x.at = any (cancelled) then 'z' when x.before is not null then 'h' when x.due > now then 'l' else 'o' end as state
    ) y
  ), ends as (
    select coalesce((select min(x.at) from counted x where x.so_far = total), (select max(x.at) from page x)) as at
  ), kept as (
    select x.* from counted x where x.at <= (select y.at from ends y)
  ), opened as (
    insert into dibs.queue_open (queue, position, state, session, due, after)
    select q, x.at, x.state::"char", case when x.state = 'o' then me end, case when x.state in ('l', 'h') then x.due end,
      case when x.state = 'z' then coalesce(x.before, x.at) else x.before end
    from kept x
  )
  select array_agg(x.at order by x.at) filter (where x.state = 'o'), count(*) filter (where x.state in ('h', 'z')), min(x.due) filter (where x.state = 'l'),
    (select y.at from ends y), (select count(*) = size or max(x.at) > (select y.at from ends y) from page x)
  into positions, holds, soon, high, more
  from kept x;
  if positions is not null then
    select array_agg(x.id), array_agg(x.stream_name), array_agg(x.position), array_agg(x.type), array_agg(x.data::text), array_agg(x.metadata::text),
      array_agg(dibs.microseconds(x.time))
    into ids, streams, stream_positions, types, data, metadata, times
    from (
      select y.*
      from unnest(positions) with ordinality u (at, n)
      cross join lateral (select z.* from dibs.messages z where z.category = of_category and z.global_position = u.at offset 0) y
      order by u.n
    ) x;
  end if;
end
$$;

comment on function dibs.queue_ahead(integer, text, bigint, timestamptz, bigint, bigint, integer, integer, bigint[]) is
'Moves the cursor of a queue of items by a page of at most size messages, and returns the items that are out then, up to total, how many rows are held or cancelled,
when a row that was opened is due, the new cursor, or null for no message, and whether there may be more.';
