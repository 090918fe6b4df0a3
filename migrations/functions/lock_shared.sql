-- The locks of a write in a caller's transaction, which may take long to commit. Those of one
-- category overlap: each shares the category's lock, and has its streams for itself. So positions
-- do not become visible in order, and a reader has to know which may still come. That is told by
-- a lock too, of dibs.floor_class. All other writers take the category's lock for themselves, so
-- they exclude these, and find every message there is.
--
-- The class of a stream's lock is "dibt" in ASCII.
create or replace function dibs.lock_shared(streams text[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if (
    select bool_and(coalesce(f.shared, false))
    from unnest(streams) s (name)
    left join lateral (select l.shared from dibs.fences l where l.category = split_part(s.name, '-', 1) limit 1) f on true
  ) then
    perform pg_advisory_xact_lock_shared(1684628083, k.key)
    from (select distinct dibs.lock_key(split_part(s.name, '-', 1)) as key from unnest(streams) s (name) order by 1) k;
    perform pg_advisory_xact_lock(1684628084, k.key)
    from (select distinct hashtext(s.name) as key from unnest(streams) s (name) order by 1) k;
    -- Behind the category's lock, and before a position is drawn.
    perform pg_advisory_xact_lock_shared(dibs.floor_class(k.category), k.drawn)
    from (
      select distinct split_part(s.name, '-', 1) as category, (d.position & 4294967295)::bit(32)::integer as drawn
      from unnest(streams) s (name), dibs.drawn() d (position)
    ) k;
    return;
  end if;

  -- Readers do not know yet. The next transactions see the mark, and share.
  perform pg_advisory_xact_lock(1684628083, k.key)
  from (select distinct dibs.lock_key(split_part(s.name, '-', 1)) as key from unnest(streams) s (name) order by 1) k;
  insert into dibs.fences as f (category, fence, shared)
  select distinct split_part(s.name, '-', 1), 0, true from unnest(streams) s (name) order by 1
  on conflict (category) do update set shared = true where not f.shared;
end
$$;

comment on function dibs.lock_shared(text[]) is
'Locks streams to the end of the transaction, for one that writes to them at READ COMMITTED and is to keep no other such
transaction from the rest of their categories. The first one in a category keeps all others from it.';
