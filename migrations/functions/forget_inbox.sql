create or replace function dibs.forget_inbox(
  category text, older_than interval, reason text default null, from_position bigint default 0,
  max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (outcome text, streams bigint, messages bigint, next_position bigint, more boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  perform dibs.refuse_invalid_forget(category, reason, from_position, max_messages, dry_run, id);
  if category !~ '[:+]inbox$' then
    raise exception 'invalid category: its last type is not inbox, so its keys stay taken' using errcode = 'DB001', column = 'category';
  end if;
  if older_than is null or older_than < '24 hours' or older_than > '100 years' then
    raise exception 'invalid older_than: it is from a day to 100 years' using errcode = 'DB001', column = 'older_than';
  end if;
  if not dry_run then
    perform dibs.lock_retention(category);
    perform dibs.await_standby(); -- also where it finds nothing to do
  end if;
  return query
  select f.outcome, f.streams, f.messages, f.next_position, f.more
  from dibs.forget_streams(
    category, array['Received', 'Undone'], clock_timestamp() - older_than, category || '+forgotten-1', 'requests', '{}',
    reason, from_position, max_messages, dry_run, id
  ) f;
end
$$;

comment on function dibs.forget_inbox(text, interval, text, bigint, integer, boolean, uuid) is
'Removes the requests of an inbox whose last message is older than an age, key and all: no tombstone is left, and the keys are
free. So the age is the window of deduplication: a copy of a request that comes later is carried out again. Only in a category whose
last type is inbox, such as payments:inbox, and only from a day on.

A request that has the last message of its category stays, and so does one that was deleted, and any stream that does not end as
a request does, or as its undo.

It looks at up to max_messages messages from a global position on, and removes as many; next_position is where to go on, if there
are more to look at. With dry_run nothing is removed. A call again with the same id, after its answer was lost, removes nothing
and answers as the first did, and that there are more.

Answers with one row:
  forgotten  and recorded, without names, by a message of type dibs:Forgotten in payments:inbox+forgotten-1 for payments:inbox
  nothing    there was nothing to remove
Raises DB001 for bad input, 0A000 above READ COMMITTED, 55P03 after 10 seconds of waiting for another transaction.';

grant execute on function dibs.forget_inbox to dibs_admin;
