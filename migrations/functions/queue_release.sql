-- Has the streams of items go on that are finished, or dead, or linked to themselves. The first of what is linked to such an item is let go,
-- and the others are linked to that, as in a pairing heap: what is linked to an item comes after it, so the first of all is among those
-- that are linked to none.
create or replace function dibs.queue_release(q integer, positions bigint[], now timestamptz, out n integer, out soon timestamptz, out suspects boolean)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_variable
declare
  i integer := 1;
  row record;
  behind bigint[];
begin
  n := 0;
  suspects := false;
  while i <= cardinality(positions) loop
    select x.state, x.after into row from dibs.queue_open x where x.queue = q and x.position = positions[i];
    if row.state is null or row.state = 'd' and row.after is null or row.state <> 'o' and row.after = positions[i] then
      behind := array(
        select x.position from dibs.queue_open x
        where x.queue = q and x.state = any ('{h,z,d,k,s}'::"char"[]) and x.after = positions[i]
        order by x.position
      );
      if cardinality(behind) > 1 then
        update dibs.queue_open x set after = behind[1] where x.queue = q and x.position = any (behind[2:]);
      end if;
      if cardinality(behind) > 0 then
        n := n + 1;
        delete from dibs.queue_open x where x.queue = q and x.position = behind[1] and x.state = 'z';
        if found then
          positions := positions || behind[1];
        else
          update dibs.queue_open x
          set state = case x.state when 'h' then 'l' else x.state end,
            after = case when x.state = 'h' and x.ends > 1 then 0 end,
            due = case x.state when 'h' then greatest(x.due, now) end,
            given = case when x.state = 'h' and x.due > now then x.given else now end
          where x.queue = q and x.position = behind[1]
          returning x.state, x.due, x.ends into row;
          soon := least(soon, row.due);
          suspects := suspects or row.state = 'l' and row.ends > 1;
          if row.state = 'd' then
            positions := positions || behind[1];
          end if;
        end if;
      end if;
    end if;
    i := i + 1;
  end loop;
end
$$;

comment on function dibs.queue_release(integer, bigint[], timestamptz) is
'Lets go what is behind the items at positions that are finished or dead, or are linked to themselves, and returns how many rows are linked no more, when
the first of them is due, and whether one is delivered alone.';
