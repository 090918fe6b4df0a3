-- The lowest global position from which one of the consumers of a category has yet to read; null if the category
-- has none. A checkpoint that cannot be read counts as 0. A consumer whose ledger was deleted does not count.
create or replace function dibs.passed(of_category text) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with last as (
    select m.stream_name, m.position, m.type, case when dibs.storable_json(m.data) then m.data end as data
    from (
      select distinct on (p.stream_name) p.stream_name, p.position, p.type, p.data
      from dibs.messages p
      where p.category = of_category || case when strpos(of_category, ':') > 0 then '+' else ':' end || 'position'
      order by p.stream_name, p.position desc
    ) m
  )
  select min(case when k.kept ~ '^[0-9]{1,18}$' then k.kept::bigint + (l.type = 'Recorded')::integer else 0 end)
  from last l
  left join last c on c.stream_name = l.stream_name || '+' || coalesce(l.data ->> 'of', l.position::text)
  cross join lateral (
    select case
      when l.type = 'Recorded' then l.data ->> 'position' -- by another client, which records the position of the last message that it handled
      when c.stream_name is null then l.data ->> 'start'
      when c.type = 'Recorded' then c.data ->> 'position'
    end as kept
  ) k
  where l.type in ('Started', 'Recorded') and strpos(substr(l.stream_name, strpos(l.stream_name, '-')), '+') = 0
$$;
