-- Has dead items of a queue of items offered again, each at its place in its stream. It is held where another goes first: the one that is out, or one
-- before it that waits for its time or is closed. A later one that is not out waits for it.
create or replace function dibs.queue_link(
  q integer, of_category text, cursor bigint, of_positions bigint[], now timestamptz, out done bigint[], out versions integer[], out n integer, out suspects boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_variable
declare
  item record;
  own bigint; -- what the row is linked to
  stream text; -- of the one before
  previous bigint; -- that one
  last bigint; -- message of the stream
  kept integer; -- its version
  first record; -- the row that the last one is linked to, over others perhaps
  loose record;
begin
  n := 0;
  suspects := false;
  for item in
    select y.position, y.version, m.stream_name
    from (select distinct v.position from unnest(of_positions) v (position)) u
    cross join lateral (
      select x.position, x.version from dibs.queue_open x where x.queue = q and x.position = u.position and x.state in ('d', 'k') offset 0
    ) y
    left join lateral (
      select z.stream_name from dibs.messages z where z.category = of_category and z.global_position = u.position and z.type <> 'dibs:Tombstone' offset 0
    ) m on true
    order by m.stream_name, y.position
  loop
    select x.after into own from dibs.queue_open x where x.queue = q and x.position = item.position;
    if item.stream_name is not null and own is null then -- else its message was removed, which a take finds out, or it has its place
      if item.stream_name = stream then
        own := previous;
        n := n + 1;
      else
        last := (
          select x.global_position from dibs.messages x
          where x.stream_name = item.stream_name and x.global_position <= cursor
          order by x.position desc
          limit 1
        );
        loop
          with recursive up as (
            select x.position, x.state, x.after, 1 as n from dibs.queue_open x where x.queue = q and x.position = last
            union all
            select y.position, y.state, y.after, u.n + 1
            from up u
            cross join lateral (
              select z.position, z.state, z.after from dibs.queue_open z where z.queue = q and z.position = u.after and u.after > 0 and u.after <> u.position offset 0
            ) y
          )
          select x.* into first from up x order by x.n desc limit 1;
          -- One that was finished, and that nobody reported.
          exit when first.position is null or first.state = 'd' and first.after is null and first.position = last;
          exit when first.state in ('o', 'k', 'l') and (first.after is null or first.after in (0, first.position) and first.state <> 'k');
          select x.* into loose
          from dibs.queue_release(q, array[case when first.state = 'd' and first.after is null then first.position else first.after end], now) x;
          n := n - loose.n;
          suspects := suspects or loose.suspects;
        end loop;
        if first.position is null or first.state = 'd' then -- nothing of the stream waits: the last keeps the place of what comes next
          if last <> item.position then
            update dibs.queue_open x set after = item.position where x.queue = q and x.position = last;
            if not found then
              kept := coalesce((
                select x.version + case when x.what in ('D', 'C') then 0 else 1 end
                from dibs.queue_log x where x.queue = q and x.position = last
                order by x.version desc
                limit 1
              ), 0);
              insert into dibs.queue_open (queue, position, version, state, after) values (q, last, kept, 'z', item.position);
            end if;
            n := n + 1;
          end if;
        elsif first.position = item.position then -- it was closed
          null;
        elsif first.state = 'o' and item.position < first.position then
          perform from dibs.queue_open x where x.queue = q and x.position = first.position for update skip locked;
          continue when not found; -- a transaction of a caller's is finishing it, and the queue does not wait for that
          update dibs.queue_open x set after = x.position where x.queue = q and x.position = first.position;
          own := first.position;
          n := n + case when first.after is null then 2 else 1 end;
        elsif first.state = 'o' or first.position < item.position then
          own := first.position;
          n := n + 1;
        else
          update dibs.queue_open x set after = item.position, state = case x.state when 'l' then 'h' else x.state end
          where x.queue = q and x.position = first.position;
          n := n + 1;
        end if;
      end if;
    end if;
    if item.stream_name is not null then
      stream := item.stream_name;
      previous := item.position;
    end if;
    update dibs.queue_open x
    set version = x.version + 1, failures = 0, ends = 0, state = case when own is null then 'l' else 'h' end, after = own, due = now, given = now
    where x.queue = q and x.position = item.position;
    done := done || item.position;
    versions := versions || item.version;
  end loop;
end
$$;

comment on function dibs.queue_link(integer, text, bigint, bigint[], timestamptz) is
'Has dead items offered again in their places, and returns their positions and the versions that ended, how many more rows are linked, and whether one is
delivered alone.';
