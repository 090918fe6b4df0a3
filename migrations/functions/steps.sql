-- Each message of a category, with the one before it in its stream.
create or replace function dibs.steps(of_category text)
returns table (stream_name text, "position" bigint, global_position bigint, previous bigint, previous_global bigint)
language sql stable
as $$
  select m.stream_name, m.position, m.global_position, lag(m.position) over w, lag(m.global_position) over w
  from dibs.messages m
  where m.category = of_category
  window w as (partition by m.stream_name order by m.position, m.global_position)
$$;
