-- The locks of a write in a caller's transaction, which may take long to commit. Those of one
-- category overlap: each shares the category's lock, and has its streams for itself. So positions
-- do not become visible in order, and a reader has to know which may still come. That is told by
-- a lock too, of dibs.floor_class. All other writers take the category's lock for themselves, so
-- they exclude these, and find every message there is.
--
-- The class of a stream's lock is "dibt" in ASCII. Locks are taken in the order of their keys, one
-- expression each: a query would cost ten times as much.
create or replace function dibs.lock_shared(streams text[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  categories text[];
  category_keys integer[];
  stream_keys integer[];
  key integer;
  name text;
  drawn integer; -- the lower 32 bits
  done boolean;
begin
  select array_agg(distinct s.category), array_agg(distinct s.category_key order by s.category_key), array_agg(distinct s.key order by s.key)
  into categories, category_keys, stream_keys
  from (
    select c.category, dibs.lock_key(c.category) as category_key, hashtext(n.name) as key
    from unnest(streams) n (name), split_part(n.name, '-', 1) c (category)
  ) s;

  if (select count(*) from dibs.fences f where f.category = any (categories) and f.shared) < cardinality(categories) then
    -- Readers do not know yet. The next transactions see the mark, and share.
    foreach key in array category_keys loop
      done := pg_advisory_xact_lock(1684628083, key) is null;
    end loop;
    insert into dibs.fences as f (category, fence, shared)
    select c.category, 0, true from unnest(categories) c (category)
    on conflict (category) do update set shared = true where not f.shared;
    return;
  end if;

  foreach key in array category_keys loop
    done := pg_advisory_xact_lock_shared(1684628083, key) is null;
  end loop;
  foreach key in array stream_keys loop
    done := pg_advisory_xact_lock(1684628084, key) is null;
  end loop;
  -- Behind the category's lock, and before a position is drawn.
  drawn := (coalesce(pg_sequence_last_value('dibs.messages_global_position_seq'), dibs.drawn()) & 4294967295)::bit(32)::integer;
  foreach name in array categories loop
    done := pg_advisory_xact_lock_shared(dibs.floor_class(name), drawn) is null;
  end loop;
end
$$;

comment on function dibs.lock_shared(text[]) is
'Locks streams to the end of the transaction, for one that writes to them at READ COMMITTED and is to keep no other such
transaction from the rest of their categories. The first one in a category keeps all others from it.';
