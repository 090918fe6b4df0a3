-- What a take tells of a delivery that it has not ended. To end one again, in the same way, is no mistake.
create or replace function dibs.queue_ended(q integer, of_category text, cursor bigint, of_position bigint, of_version integer, kind text, streams boolean) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  found record;
begin
  select x.what into found from dibs.queue_log x where x.queue = q and x.position = of_position and x.version = of_version;
  if found.what is not null then
    return case when found.what::text = kind then 'd' else 'l' end;
  end if;
  select x.version, x.state into found from dibs.queue_open x where x.queue = q and x.position = of_position and x.state <> 'z';
  if found.state is not null then
    return case
      when found.version = of_version and found.state = 'o' and kind = 't' then 'o'
      when found.version > of_version and of_version >= 0 and kind in ('w', 's') then 'd' -- what is not in the log ended so
      else 'l'
    end;
  end if;
  return case
    when kind in ('c', 't') and of_position <= cursor and of_version >= 0 and (
      (of_version = 0 or streams) and exists (
        select from dibs.messages x where x.category = of_category and x.global_position = of_position and x.type <> 'dibs:Tombstone'
          and (x.position = 0 or not streams)
      )
      -- Its message may have been removed since.
      or not streams and exists (
        select from dibs.queue_log x where x.queue = q and x.position = of_position and x.version = of_version - 1
      )
    )
    then 'd' -- by an earlier call for the same delivery
    else 'l'
  end;
end
$$;

comment on function dibs.queue_ended(integer, text, bigint, bigint, integer, text, boolean) is 'What became of a delivery that is not out: d, l or o, as queue_take tells.';
