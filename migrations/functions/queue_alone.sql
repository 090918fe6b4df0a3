-- A row whose session was over twice may be what ended it: it is out alone in its session, so that only it is buried, and with the items of
-- a session that ends no other. A session that has items out takes no more until it has none, one of a queue at a time, while
-- the others go on.
create or replace function dibs.queue_alone(
  q integer, of_category text, of_streams boolean, of_slots bigint, low bigint, me bigint, now timestamptz, inout apart bigint, out taken bigint, out waits boolean, out soon timestamptz, out suspects boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_variable
declare
  mine bigint;
  is_mine boolean;
begin
  if of_streams then
    select count(*) filter (where x.session = me), coalesce(bool_or(x.session = me and x.ends > 1), false), coalesce(bool_or(x.ends > 1), false)
    into mine, is_mine, suspects
    from dibs.queue_open x where x.queue = q and x.state = 'o' and x.woken is not null;
  else
    select count(*) filter (where x.session = me), coalesce(bool_or(x.session = me and x.ends > 1), false), coalesce(bool_or(x.ends > 1), false)
    into mine, is_mine, suspects
    from dibs.queue_open x where x.queue = q and x.position >= low and x.state = 'o';
  end if;
  taken := (
    select x.position from dibs.queue_open x
    where x.queue = q and x.state = 'l' and x.after = 0 and x.due <= now and (of_slots is null or dibs.of_slots(of_category, x.position, of_slots))
    order by x.after, x.due, x.position
    limit 1
  );
  soon := (select x.due from dibs.queue_open x where x.queue = q and x.state = 'l' and x.after = 0 and x.due > now order by x.after, x.due limit 1);
  suspects := suspects or taken is not null or soon is not null
    or of_slots is not null and exists (select from dibs.queue_open x where x.queue = q and x.state = 'l' and x.after = 0);
  waits := is_mine;
  if taken is not null and not is_mine then
    if mine = 0 then
      update dibs.queue_open x
      set state = 'o', session = me, due = null, after = null, woken = case when of_streams then coalesce(x.woken, 0) end
      where x.queue = q and x.position = taken;
      apart := null;
      return;
    end if;
    waits := apart is null or apart = me or not exists (select from dibs.queue_sessions x where x.queue = q and x.session = apart and x.until > now);
    apart := case when waits then me else apart end;
  end if;
  taken := null;
end
$$;

comment on function dibs.queue_alone(integer, text, boolean, bigint, bigint, bigint, timestamptz, bigint) is
'Takes a row whose session was over twice, if there is one and the session me has nothing out, or tells that the session waits, to have one alone
or while it has one; soon is when the next is due, and suspects whether there is any.';
