create or replace function dibs.verify_consumers(of_category text, max_violations integer)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language plpgsql stable
as $$
declare
  consumed constant text := regexp_replace(of_category, '[:+]position$', '');
  head constant bigint := coalesce((select max(m.global_position) from dibs.messages m where m.category = consumed), -1);
begin
  return query
  select c.name, of_category, null::text, null::bigint, null::bigint, null::text, null::text, c.n
  from (
    select count(distinct k.name) filter (where k.generation is null) as consumers, count(*) filter (where k.generation is not null) as positions
    from dibs.kept_positions(of_category) k
    where k.ledger
  ) t
  cross join lateral (values ('consumers', t.consumers), ('positions', t.positions)) c (name, n);

  return query
  with k as materialized (
    select * from dibs.kept_positions(of_category)
  ), generations as (
    select l.name, l.position as generation, l.kept as start from k l where l.generation is null and l.type = 'Started' and l.continues is null
  ), ledgers as (
    -- the generation that goes on
    select l.name, max(coalesce(l.continues, l.position)) as last from k l where l.generation is null group by l.name
  )
  select v.rule, of_category, k.stream_name, k.position, k.global_position, v.expected, v.found, null::bigint
  from k
  left join generations g on g.name = k.name and g.generation = k.generation
  left join ledgers l on l.name = k.name
  -- The message in the place of the one that a position names, of those that are gone on from.
  left join lateral (
    select m.id
    from dibs.messages m
    where m.category = consumed and m.global_position = case when k.kept between 1 and 9223372036854775807 then (k.kept - 1)::bigint end
      and k.after is not null and k.latest and k.ledger and coalesce(k.generation, k.continues, k.position) = l.last
  ) w on true
  cross join lateral (values
    ('ledger', k.generation is null and k.ledger and (k.type <> 'Started' or k.kept is null or k.kept < 0), 'a Started with a start', k.type),
    ('ledger', k.generation is null and k.ledger and k.continues >= k.position, 'a generation before this entry, which it continues', k.continues::text),
    ('ledger', k.generation is null and k.type = 'Started' and (k.continues is not null or not k.reset) and k.kept <> k.previous,
      'the start of the entry before, ' || k.previous, k.kept::text),
    ('ledger', k.generation is not null and not k.ledger, 'a ledger that starts generation ' || k.generation, 'none'),
    ('ledger', k.generation is not null and k.ledger and k.generation > l.last,
      'a generation that the ledger starts, up to ' || l.last, 'generation ' || k.generation),
    ('consumer', k.generation is not null and (k.type <> 'Recorded' or k.kept is null or k.kept < 0),
      'a Recorded with a position', k.type),
    ('consumer', (k.generation is not null or k.ledger) and k.kept > 0 and k.kept - 1 > head,
      'a position not ahead of ' || consumed || case when head < 0 then ', which has no message' else ', whose last message is at ' || head end, k.kept::text),
    ('consumer', k.generation is not null and k.kept < coalesce(k.previous, g.start),
      'a position not before ' || coalesce(k.previous, g.start), k.kept::text),
    ('consumer', w.id::text <> k.after, 'a position right behind message ' || k.after, 'message ' || w.id || ' there')
  ) v (rule, holds, expected, found)
  where v.holds and k.type <> 'dibs:Tombstone'
  limit max_violations;
end
$$;
