-- The poll of a queue: it takes no lock.
create or replace function dibs.queue_ready(queue_name text, of_category text, out ready boolean, out wake bigint, out parked boolean, out asked boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  h record;
  soon timestamptz;
  now constant timestamptz := clock_timestamp();
begin
  select x.queue, x.at, x.cursor, x.paused, x.wake, x.held, x.checked, x.suspects into h
  from dibs.queue_heads x
  where x.queue = (select y.id from dibs.queues y where y.name = queue_name)
  order by x.version desc
  limit 1;
  parked := coalesce(h.cursor = 4611686018427387904, false);
  asked := parked and exists (select from dibs.queue_open x where x.queue = h.queue and x.state = 's' offset 0);
  if h.paused then
    ready := false;
    return;
  end if;
  soon := least(nullif(h.wake, 'infinity'), case when h.held > 0 then h.checked + dibs.queue_pause(h.held) end);
  if h.suspects then -- rows that are delivered alone
    soon := least(soon, (select x.due from dibs.queue_open x where x.queue = h.queue and x.state = 'l' and x.after = 0 order by x.after, x.due limit 1));
  end if;
  wake := case when soon is not null then greatest(0, dibs.microseconds(soon) - dibs.microseconds(now)) end;
  ready := coalesce(wake = 0 or now < h.at - interval '1 s', false) -- a take moves what a clock that was ahead has computed
    or exists (select from dibs.queue_sessions x where x.queue = h.queue and x.until > now + x.lasts + interval '1 s')
    or exists (select from dibs.messages x where x.category = of_category and x.global_position > coalesce(h.cursor, 0));
end
$$;

comment on function dibs.queue_ready(text, text) is
'Whether queue_take may find something, and else after how many microseconds without a write; null for never. Parked says that the queue
is one of parked messages, and asked that some are to be parked.';

grant execute on function dibs.queue_ready to dibs_writer, dibs_worker;
