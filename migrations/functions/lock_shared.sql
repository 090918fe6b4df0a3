-- The locks of a write in a caller's transaction, which may take long to commit. Those of one
-- category overlap: each shares the category's lock, and has its streams for itself. So positions
-- do not become visible in order, and a reader has to know which may still come. That is told by
-- a lock too, of dibs.floor_class. All other writers take the category's lock for themselves, so
-- they exclude these, and find every message there is.
--
-- The class of a stream's lock is "dibt" in ASCII. Locks are taken in the order of the streams' names
-- by bytes, a category's right before those of its streams, as several calls of append_shared take
-- them; one expression each: a query would cost ten times as much.
create or replace function dibs.lock_shared(streams text[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  sorted text[];
  name text;
  stream_category text;
  locked text; -- the category before it
  done boolean;
begin
  select array_agg(n.name order by n.name collate "C") into sorted from unnest(streams) n (name);

  if exists (select from unnest(sorted) n (name) where not exists (
    select from dibs.fences f where f.category = split_part(n.name, '-', 1) and f.shared
  )) then
    -- Readers do not know yet. The next transactions see the mark, and share.
    foreach name in array sorted loop
      stream_category := split_part(name, '-', 1);
      if stream_category is distinct from locked then
        done := pg_advisory_xact_lock(1684628083, dibs.lock_key(stream_category)) is null;
        locked := stream_category;
      end if;
    end loop;
    insert into dibs.fences as f (category, fence, shared)
    select distinct split_part(n.name, '-', 1), 0, true from unnest(sorted) n (name)
    on conflict (category) do update set shared = true where not f.shared;
    return;
  end if;

  foreach name in array sorted loop
    stream_category := split_part(name, '-', 1);
    if stream_category is distinct from locked then
      done := pg_advisory_xact_lock_shared(1684628083, dibs.lock_key(stream_category)) is null;
      -- Behind the category's lock, and before a position is drawn.
      done := pg_advisory_xact_lock_shared(dibs.floor_class(stream_category),
        (coalesce(pg_sequence_last_value('dibs.messages_global_position_seq'), dibs.drawn()) & 4294967295)::bit(32)::integer) is null;
      locked := stream_category;
    end if;
    done := pg_advisory_xact_lock(1684628084, hashtext(name)) is null;
  end loop;
end
$$;

comment on function dibs.lock_shared(text[]) is
'Locks streams to the end of the transaction, for one that writes to them by append_shared and is to keep no other such
transaction from the rest of their categories. The first one in a category keeps all others from it.';
