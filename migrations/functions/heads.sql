-- A descent of one index for each category, with any plan.
create or replace function dibs.heads(categories text[]) returns bigint[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return array(
    select coalesce((select m.global_position from dibs.messages m where m.category = c.name order by m.global_position desc limit 1), 0)
    from unnest(categories) with ordinality c (name, number)
    order by c.number
  );
end
$$;

comment on function dibs.heads(text[]) is
'The global position of the last message of each category, in the order given; 0 for a category without messages.';

grant execute on function dibs.heads to dibs_reader, dibs_writer, dibs_admin;
