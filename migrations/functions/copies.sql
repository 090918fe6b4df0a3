-- The copies that reservations made carry their key. That alone does not make a copy:
-- its cause and its key lead to its stream.
create or replace function dibs.copies(of_category text)
returns table (
  stream_name text, "position" bigint, global_position bigint, id uuid, cause text, cause_position bigint, key text, reserver text, leads boolean
)
language sql stable
as $$
  select c.stream_name, c.position, c.global_position, c.id, c.cause,
    case when c.cause_position ~ '^[0-9]{1,18}$' then c.cause_position::bigint end, c.key, c.reserver,
    c.stream_name = c.cause || c.ids
      or c.stream_name = c.category || '-' || split_part(substr(c.cause, strpos(c.cause, '-') + 1), '+', 1) || c.ids
  from (
    select m.*, m.metadata ->> 'causationMessageStreamName' as cause, m.metadata ->> 'causationMessagePosition' as cause_position,
      l.key, l.reserver, coalesce('+' || l.reserver, '') || '+' || l.key as ids
    from dibs.messages m
    cross join lateral (
      select m.metadata #>> '{localProperties,reservedKey}' as key, nullif(m.metadata #>> '{localProperties,reservedFor}', '') as reserver
    ) l
    where m.category = of_category and m.metadata::text like '%"reservedKey"%' and l.key <> ''
  ) c
  where strpos(c.cause, '-') > 1
$$;
