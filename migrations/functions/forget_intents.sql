create or replace function dibs.forget_intents(
  category text, before timestamptz, reason text default null, from_position bigint default 0,
  max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (outcome text, intents bigint, messages bigint, next_position bigint, more boolean, key_life interval)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  side text; -- the category in which the life of keys is declared
  declared record;
begin
  perform dibs.refuse_invalid_forget(category, reason, from_position, max_messages, dry_run, id);
  if before is null or not isfinite(before) then
    raise exception 'invalid before: it is a time' using errcode = 'DB001', column = 'before';
  end if;
  side := category || case when strpos(category, ':') > 0 then '+' else ':' end || 'life';
  intents := 0; messages := 0; next_position := from_position; more := false;
  if not dry_run then
    perform dibs.lock_retention(category);
    perform dibs.await_standby(); -- also where it finds nothing to do
  end if;

  select m.type, m.global_position, case when dibs.storable_json(m.data) then m.data end ->> 'seconds' as seconds into declared
  from dibs.messages m where m.stream_name = side || '-1' order by m.position limit 1;
  if declared.type is distinct from 'KeyLifeDeclared' or coalesce(declared.seconds, '') !~ '^[1-9][0-9]{1,9}$' or exists (
    select from dibs.messages m where m.category = forget_intents.category and m.global_position < declared.global_position
  ) then
    outcome := 'no_key_life';
    return next;
    return;
  end if;
  key_life := make_interval(secs => declared.seconds::bigint);

  if before > clock_timestamp() - key_life then
    outcome := 'inside_key_life';
    return next;
    return;
  end if;

  select f.outcome, f.streams, f.messages, f.next_position, f.more
  into outcome, intents, messages, next_position, more
  from dibs.forget_streams(
    category, array['Confirmed'], before, side || '-forgotten', 'intents', json_build_object('keyLifeSeconds', declared.seconds::bigint),
    reason, from_position, max_messages, dry_run, id
  ) f;
  return next;
end
$$;

comment on function dibs.forget_intents(text, timestamptz, text, bigint, integer, boolean, uuid) is
'Removes the intents of a category that were confirmed before a time, key and all: no tombstone is left, and the keys are free.
Only in a category whose first manager declared how long its keys live, and only intents that were confirmed longer ago than that.
An intent that has the last message of its category stays, and so does one that was deleted.

It looks at up to max_messages messages from a global position on, and removes as many, or one intent with more; next_position
is where to go on, if there are more to look at. The end is a call that finds no message from before the time. With dry_run
nothing is removed. A call again with the same id, after its answer was lost, removes nothing and answers as the first did, and
that there are more.

Answers with one row:
  forgotten        and recorded, without names, by a message of type dibs:Forgotten in payment:intent+life-forgotten for payment:intent
  nothing          there was nothing to remove
  no_key_life      nothing was removed: the category declares no life of its keys, or had an intent before it did
  inside_key_life  nothing was removed: the time is less than key_life ago
Raises DB001 for bad input, 0A000 above READ COMMITTED, 55P03 after 10 seconds of waiting for another transaction.';

grant execute on function dibs.forget_intents to dibs_admin;
