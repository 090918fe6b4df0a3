-- In the caller's transaction, and without the queue's lock, which it would hold to its end. The next take
-- that is told of it lets go what is held behind; untold, one does a second later.
create or replace function dibs.queue_finish(queue_name text, of_category text, me bigint, ended_positions bigint[], ended_versions integer[]) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  q integer;
  done bigint[];
  streams boolean;
  known boolean; -- the session is one of the queue's: in another database, whose positions are alike, it is not
begin
  if (cardinality(ended_positions) between 1 and 1000 and cardinality(ended_positions) = cardinality(ended_versions)) is not true then
    raise exception 'invalid positions: must be 1 to 1000, each with a version' using errcode = 'DB001', column = 'ended_positions';
  end if;
  select x.id, x.streams into q, streams from dibs.queues x where x.name = queue_name and x.category = of_category;
  if streams then
    raise exception 'invalid queue: must be a queue of items, and % is one of streams, whose deliveries a take ends', queue_name using errcode = 'DB001', column = 'queue_name';
  end if;
  -- One by one: a join that was planned when the queue was small would read all open rows.
  for i in 1 .. cardinality(ended_positions) loop
    delete from dibs.queue_open x
    where x.queue = q and x.position = ended_positions[i] and x.version = ended_versions[i] and x.state = 'o' and x.session = me and x.after is null;
    if not found then -- items are to go before what is behind it
      update dibs.queue_open x set state = 'z', session = null
      where x.queue = q and x.position = ended_positions[i] and x.version = ended_versions[i] and x.state = 'o' and x.session = me and x.after is not null;
    end if;
    if found then
      done := done || ended_positions[i];
    end if;
  end loop;
  known := exists (select from dibs.queue_sessions x where x.queue = q and x.session = me);
  return (
    select string_agg(
      case when u.position = any (done) then 'd' when not known then 'l'
      else dibs.queue_ended(q, of_category, (select x.cursor from dibs.queue_heads x where x.queue = q order by x.version desc limit 1), u.position, u.version, 'c', false)
      end, '' order by u.n)
    from unnest(ended_positions, ended_versions) with ordinality u (position, version, n)
  );
end
$$;

comment on function dibs.queue_finish(text, text, bigint, bigint[], integer[]) is
'Completes deliveries of the session me in the caller''s transaction, and tells d done or l lost of each.';

grant execute on function dibs.queue_finish to dibs_worker;
