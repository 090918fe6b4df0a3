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
  if cardinality(categories) > 1000 then
    raise exception 'invalid categories: must be at most 1000' using errcode = 'DB001', column = 'categories';
  end if;
  return array(
    select coalesce(
      case
        when (select f.shared from dibs.fences f where f.category = c.name) then dibs.shared_head(c.name)
        else (select m.global_position from dibs.messages m where m.category = c.name order by m.global_position desc limit 1)
      end,
      0
    )
    from unnest(categories) with ordinality c (name, number)
    order by c.number
  );
end
$$;

comment on function dibs.heads(text[]) is
'The global position of the last message of each category that readers may read, in the order given; 0 for none. It takes at most 1000.';

grant execute on function dibs.heads to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
