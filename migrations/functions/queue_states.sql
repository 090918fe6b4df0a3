-- A delivery that was neither given back nor buried and is not out has finished its item, also in a caller's transaction,
-- which cannot count it. The head's count is of the others. A session whose end is later than its lease from now on was
-- extended while the clock was ahead: if its process lives, it extends it again.
create or replace function dibs.queue_states(of_name text default null, most bigint default null)
returns table (
  name text, category text, paused boolean, cursor bigint, out_items bigint, later bigint, held bigint, dead bigint,
  waiting boolean, oldest bigint, taken bigint, finished bigint, returned bigint, buried bigint, due bigint, sessions bigint, at bigint, suspended bigint, streams boolean, changed bigint, partial boolean
)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select q.name, q.category, coalesce(h.paused, false), coalesce(h.cursor, 0), o.taken, o.later, o.held, o.dead,
    w.time is not null, dibs.microseconds(least(o.oldest, w.time)),
    coalesce(h.taken, 0), coalesce(h.finished + h.taken - h.returned - h.buried - o.taken, 0), coalesce(h.returned, 0), coalesce(h.buried, 0),
    o.due, s.live, dibs.microseconds(n.at), o.suspended, coalesce(q.streams, false), dibs.microseconds(h.at),
    coalesce(o.open >= most, false)
  from dibs.queues q
  left join lateral (select * from dibs.queue_heads x where x.queue = q.id order by x.version desc limit 1) h on true
  cross join lateral (select clock_timestamp() as at) n
  cross join lateral (select count(*) as live from dibs.queue_sessions x where x.queue = q.id and x.until > n.at and x.until <= n.at + x.lasts + interval '1 s') s
  cross join lateral (
    select count(*) as open, count(*) filter (where x.state = 'o') as taken, count(*) filter (where x.state = 'l') as later,
      count(*) filter (where x.state = 's') as suspended,
      count(*) filter (where x.state = 'l' and x.due <= n.at) as due,
      count(*) filter (where x.state = 'h') as held, count(*) filter (where x.state in ('d', 'k')) as dead,
      (select m.time from dibs.messages m where m.category = q.category and m.global_position = min(x.position) filter (where x.state not in ('d', 'k', 'z'))) as oldest
    from (select y.state, y.due, y.position from dibs.queue_open y where y.queue = q.id order by y.position limit most) x
  ) o
  left join lateral (
    select m.time from dibs.messages m
    where m.category = q.category and m.global_position > coalesce(h.cursor, 0)
    order by m.global_position
    limit 1
  ) w on true
  where q.removed is null and (of_name is null or q.name = of_name)
  order by q.name
$$;

comment on function dibs.queue_states(text, bigint) is
'How a queue stands, or each: how many of its items are in which state, and its counts since it began. With most, only so many open items are counted, the first
by position; partial tells that there are so many.';

grant execute on function dibs.queue_states to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
