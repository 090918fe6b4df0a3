-- The number of a queue, under its lock. The class is "diq1" in ASCII, and 0 no queue's number. A queue is there from its first call on, and one of streams or
-- of items from its first take on. A queue that was removed is refused; one that is removed while a caller waits for the lock has no
-- head, and its callers ask dibs.refuse_removed_queue then.
create or replace function dibs.queue_lock(queue_name text, of_category text, of_streams boolean default null) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  found record;
  done boolean;
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'a queue is changed at READ COMMITTED only' using errcode = 'feature_not_supported';
  end if;
  select x.id, x.category, x.streams, x.removed into found from dibs.queues x where x.name = queue_name;
  if found.id is null then
    if not dibs.valid_text(queue_name) or queue_name ~ '[-+[:space:]]' or of_category ~ '-' or not dibs.valid_stream_name(of_category || '-1') then
      raise exception 'invalid queue: the name must be 1 to 255 bytes of visible text without white space, - and +, and the category must be the name of one'
        using errcode = 'DB001', column = 'queue_name';
    end if;
    done := pg_advisory_xact_lock(1684631857, 0) is null; -- one is made at a time, so that the bound is exact
    if not exists (select from dibs.queues x where x.name = queue_name)
      and (select count(*) from dibs.queues x where x.category = of_category and x.removed is null) >= 100
    then
      raise exception 'category % has 100 queues, which is the most', of_category using errcode = 'DB005';
    end if;
    insert into dibs.queues (name, category) values (queue_name, of_category) on conflict (name) do nothing;
    select x.id, x.category, x.streams, x.removed into found from dibs.queues x where x.name = queue_name;
  end if;
  if found.category <> of_category or of_streams <> coalesce(found.streams, not of_streams) then
    if found.category <> of_category then
      raise exception 'invalid category: must be the one that the queue reads, and queue % reads %', queue_name, found.category using errcode = 'DB001', column = 'of_category';
    end if;
    update dibs.queues x set streams = of_streams where x.id = found.id and x.streams is null; -- others wait for the row
    if exists (select from dibs.queues x where x.id = found.id and x.streams <> of_streams) then
      raise exception 'invalid queue: must be a queue of %, and % is one of %', case when of_streams then 'streams' else 'items' end, queue_name, case when of_streams then 'items' else 'streams' end using errcode = 'DB001', column = 'queue_name';
    end if;
  end if;
  if found.removed is not null then
    perform dibs.refuse_removed_queue(found.id, queue_name);
  end if;
  done := pg_advisory_xact_lock(1684631857, found.id) is null;
  return found.id;
end
$$;

comment on function dibs.queue_lock(text, text, boolean) is
'Locks a queue to the end of the transaction, and returns its number. A take says whether the queue is one of streams; a queue of the other kind is refused.';
