-- The clock is behind the time of the queue's head: it was ahead then, or was set back since. What was computed by that time is moved
-- with the clock, so that it takes as long from now on as it would have from the head's time on. A date that a message has stays: it
-- says when, and not how long. Rows of streams are offered at once: their workers judge by the messages.
create or replace function dibs.queue_set_back(q integer, of_category text, head_at timestamptz, now timestamptz, of_streams boolean) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
  update dibs.queue_open x
  set given = now, due = greatest(
    now, case when not of_streams then x.due - (head_at - now) end,
    case when x.version = 0 then (
      select dibs.queue_due(m.metadata) from dibs.messages m where m.category = of_category and m.global_position = x.position
    ) end
  )
  where x.queue = q and x.due > now and x.given > now + interval '1 s';
  delete from dibs.queue_tickets x where x.queue = q and x.until > now + interval '15 minutes';
end
$$;

comment on function dibs.queue_set_back(integer, text, timestamptz, timestamptz, boolean) is
'Moves the dates and places in the line of a queue that were computed by the time of its head, which is ahead of the clock.';
