-- A transaction at REPEATABLE READ or above is too old to see the removals since it began, and no
-- index is in its way any more: it would write such a stream anew. A row that it cannot see, or
-- not as it is, is in its way here. The row that it adds if there is none is gone at once, and
-- found by its place: so at SERIALIZABLE no transaction has read rows that others add.
create or replace function dibs.refuse_removed(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  place tid;
begin
  if category is null or current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    return;
  end if;
  insert into dibs.removals as r values (category, 0)
  on conflict on constraint removals_pkey do update set removals = r.removals where false
  returning r.ctid into place;
  delete from dibs.removals r where r.ctid = place;
end
$$;

comment on function dibs.refuse_removed(text) is
'Raises 40001 if messages of the category were removed since the transaction began, and it is not to see that.';
