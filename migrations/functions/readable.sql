-- A writer that shares the lock of the category is under way, and draws positions above its floor
-- (dibs.floor_class). One that has the lock and no floor yet draws none that is drawn already. One
-- that has ended is seen by the next statement, and so are this transaction's own messages. So the
-- order is: the last position drawn, then the locks, and then, in a statement of its own, the messages.
create or replace function dibs.readable(category text) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  last_drawn constant bigint := dibs.drawn();
  floors bigint[]; -- their lower 32 bits
begin
  if not coalesce((select f.shared from dibs.fences f where f.category = readable.category), false) then
    return last_drawn;
  end if;
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') or pg_is_in_recovery() then
    raise exception 'category % is written to in transactions, and read at READ COMMITTED on the primary only', category
      using errcode = 'feature_not_supported', hint = 'This transaction may not see all messages that came before the last one that it sees.';
  end if;
  select array_agg(l.objid::bigint) into floors
  from pg_locks l
  where l.locktype = 'advisory' and l.objsubid = 2 and l.classid::bigint = dibs.floor_class(category)::bigint & 4294967295
    and l.granted and l.pid is distinct from pg_backend_pid()
    and l.database = (select d.oid from pg_database d where d.datname = current_database());
  if floors is null then
    return last_drawn;
  end if;
  -- None of them is above the last position drawn by now, and none further below than 32 bits tell.
  return (
    select least(last_drawn, min(d.position - (d.position - f.low & 4294967295)))
    from dibs.drawn() d (position), unnest(floors) f (low)
  );
end
$$;

comment on function dibs.readable(text) is
'The global position up to which a later statement of a READ COMMITTED transaction sees all messages of a category that there
will ever be. It may be a little below one that it told before: a writer takes its floor a moment after it has read the last position.';
