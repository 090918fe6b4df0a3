-- A writer that shares the lock of the category is under way, and draws positions that are above
-- its floor. One that has the lock and no floor yet draws none that is drawn already. One that has
-- ended is seen by the next statement, and so is this transaction's own. So the order is: what is drawn, then the locks, and then, in
-- a statement of its own, the messages.
create or replace function dibs.readable(category text) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  last_drawn constant bigint := dibs.drawn();
  floors constant bigint := dibs.floor_key(0);
  key constant bigint := dibs.lock_key(category);
begin
  if not coalesce((select f.shared from dibs.fences f where f.category = readable.category), false) then
    return last_drawn;
  end if;
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') or pg_is_in_recovery() then
    raise exception 'category % is written to in transactions, and read at READ COMMITTED on the primary only', category
      using errcode = 'feature_not_supported', hint = 'What this transaction sees is not all that came before the last message that it sees.';
  end if;
  return (
    with held as materialized (
      select l.virtualtransaction, l.classid::bigint, l.objid::bigint, l.objsubid, l.mode
      from pg_locks l
      where l.locktype = 'advisory' and l.granted and l.pid is distinct from pg_backend_pid() and l.database = (select d.oid from pg_database d where d.datname = current_database())
    )
    select least(last_drawn, min((f.classid << 32 | f.objid) - floors))
    from held c
    join held f on f.virtualtransaction = c.virtualtransaction
    where c.objsubid = 2 and c.classid = 1684628083 and c.objid = key & 4294967295 and c.mode = 'ShareLock'
      and f.objsubid = 1 and f.classid >> 16 = floors >> 48 & 65535
  );
end
$$;

comment on function dibs.readable(text) is
'The global position up to which a later statement of a READ COMMITTED transaction sees all messages of a category that there
will ever be.';
