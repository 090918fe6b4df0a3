-- The positions that consumers recorded. The ledger of the consumer c of a category is its -c in
-- the category with the type position: each message starts a generation, or continues one. The
-- positions are in -c+generation. Streams of other forms are of other clients.
create or replace function dibs.kept_positions(of_category text)
returns table (
  stream_name text, "position" bigint, global_position bigint, type text,
  name text, generation bigint, kept numeric, continues bigint, reset boolean, after text,
  previous numeric, latest boolean, ledger boolean
)
language sql stable
as $$
  select k.*, lag(k.kept) over (partition by k.stream_name order by k.position),
    lead(k.position) over (partition by k.stream_name order by k.position) is null,
    coalesce(bool_or(k.generation is null and k.type in ('Started', 'dibs:Tombstone')) over (partition by k.name), false)
  from (
    select m.stream_name, m.position, m.global_position, m.type,
      regexp_replace(i.id, '[+][0-9]{1,18}$', '') as name,
      substring(i.id from '[+]([0-9]{1,18})$')::bigint as generation,
      case when d.data ->> (case m.type when 'Started' then 'start' else 'position' end) ~ '^-?[0-9]{1,19}$'
        then (d.data ->> (case m.type when 'Started' then 'start' else 'position' end))::numeric end as kept,
      case when d.data ->> 'of' ~ '^[0-9]{1,18}$' then (d.data ->> 'of')::bigint end as continues,
      coalesce(d.data ->> 'reset' = 'true', false) as reset,
      substring(lower(d.data ->> 'after') from '^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$') as after
    from dibs.messages m
    cross join lateral (select substr(m.stream_name, strpos(m.stream_name, '-') + 1) as id) i
    cross join lateral (select case when dibs.storable_json(m.data) then m.data end as data) d
    where m.category = of_category and strpos(m.stream_name, '-') > 0
  ) k
$$;
