-- One page of a queue of streams, from the cursor on. The first message of a stream opens a row; a later one that wakes has a row that
-- waits offered, and one that is out remember it. A page is long, since most of its messages offer nothing; it ends
-- with the last offer that is wanted, so that each message is met once, and in the order of the category.
--
-- A row that is delivered alone is due then, and offered by another step.
--
-- Rows are looked up one by one, as in queue_take. No other transaction has locked one: only queue_finish would, and it
-- refuses a queue of streams.
create or replace function dibs.queue_meet(
  q integer, of_category text, me bigint, now timestamptz, low bigint, ahead bigint, total integer, wakes text[],
  out offered bigint[], out high bigint, out more boolean, out soon timestamptz
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
declare
  size constant integer := greatest(total, 500);
  up_to bigint;
  looked integer;
  plain boolean; -- the page only opens rows, which are all offered
begin
  if exists (select from dibs.fences x where x.category = of_category and x.shared) then
    up_to := dibs.readable(of_category);
  end if;

  -- Most pages wake nothing, and all that they open is wanted: then no message has to be placed among the others.
  select array_agg(x.at order by x.at) filter (where x.position = 0), count(*), max(x.at), coalesce(bool_and(
    x.position > 0 and x.type <> all (wakes)
    or x.position = 0 and x.type <> 'dibs:Tombstone' and x.at > ahead and coalesce(strpos(x.metadata::text, '"dueAt"'), 0) = 0
  ), true)
  into offered, looked, high, plain
  from (
    select x.global_position as at, x.position, x.type, x.metadata
    from dibs.messages x
    where x.category = of_category and x.global_position > low and x.global_position <= coalesce(up_to, 9223372036854775807)
      and (up_to is not null or not exists (select from dibs.fences f where f.category = of_category and f.shared))
    order by x.global_position
    limit size
  ) x;
  if plain and coalesce(cardinality(offered), 0) < total then
    if offered is not null then
      insert into dibs.queue_open (queue, position, state, session, woken) select q, x.at, 'o', me, 0 from unnest(offered) x (at);
    end if;
    more := looked = size;
    return;
  end if;

  with page as (
    select x.global_position as at, x.stream_name, x.position, x.type, x.metadata
    from dibs.messages x
    where x.category = of_category and x.global_position > low and x.global_position <= coalesce(up_to, 9223372036854775807)
      and (up_to is not null or not exists (select from dibs.fences f where f.category = of_category and f.shared))
    order by x.global_position
    limit size
  ), met as (
    select x.at, x.position = 0 as opens, f.first, r.ctid as row, r.state, r.woken, d.due
    from page x
    cross join lateral (
      select case when x.position = 0 then x.at else (select z.global_position from dibs.messages z where z.stream_name = x.stream_name and z.position = 0) end as first
    ) f
    left join lateral (
      select o.ctid, case when o.after = 0 then 'a' else o.state end as state, o.woken from dibs.queue_open o where x.position > 0 and o.queue = q and o.position = f.first offset 0
    ) r on true
    cross join lateral (
      select case when x.position = 0 and strpos(x.metadata::text, '"dueAt"') > 0 then dibs.queue_due(x.metadata) end as due
    ) d
    where x.type <> 'dibs:Tombstone' and (x.position = 0 or x.type = any (wakes))
      and (x.position > 0 or x.at > ahead or not exists (select from dibs.queue_log l where l.queue = q and l.position = x.at and l.what = 'C'))
  ), placed as ( -- where the row is when the message comes
    select x.at, x.opens, x.first, x.row, x.woken,
      case when x.opens or x.state is null and bool_or(x.opens) over w then case when max(x.due) over w > now then 'l' else 'o' end else x.state::text end as state,
      max(x.due) over w as due
    from met x
    window w as (partition by x.first)
  ), counting as (
    select x.*,
      case when x.opens then x.state = 'o' else x.state in ('l', 's') and row_number() over (partition by x.first, x.opens order by x.at) = 1 end as offers
    from placed x
    where x.opens or x.state in ('l', 's', 'o', 'a') and x.at > coalesce(x.woken, 0)
  ), counted as (
    select x.*, count(*) filter (where x.offers) over (order by x.at) as so_far from counting x
  ), ends as (
    select coalesce((select min(x.at) from counted x where x.so_far = total), (select max(x.at) from page x)) as at
  ), changed as (
    select x.first, bool_or(x.opens) as new, bool_or(x.offers) as out, min(x.at) filter (where x.offers) as turn,
      max(x.at) filter (where not x.opens) as woken, max(x.due) as due, (array_agg(x.row))[1] as row,
      bool_or(x.state = 'a') as alone
    from counted x
    where x.at <= (select y.at from ends y)
    group by x.first
  ), opened as (
    insert into dibs.queue_open (queue, position, state, session, due, woken)
    select q, x.first, case when x.out then 'o' else 'l' end::"char", case when x.out then me end, case when not x.out then x.due end, case when x.out then coalesce(x.woken, 0) else x.woken end
    from changed x
    where x.new
  ), woke as (
    update dibs.queue_open x
    set state = case when y.alone then 'l' else 'o' end::"char", session = case when y.out then me else x.session end,
      due = case when y.alone then least(x.due, now) end, woken = y.woken
    from changed y
    where not y.new and x.ctid = y.row
  )
  select (select array_agg(x.first order by x.turn) from changed x where x.out), y.at,
    (select count(*) from page x) = size or y.at < (select max(x.at) from page x),
    (select min(x.due) from changed x where x.new and not x.out)
  into offered, high, more, soon
  from ends y;
end
$$;

comment on function dibs.queue_meet(integer, text, bigint, timestamptz, bigint, bigint, integer, text[]) is
'Moves the cursor of a queue of streams by a page, and returns the positions of the rows that are offered, up to total, the new cursor, or
null for no message, whether there may be more, and when a row that was opened is due.';
