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
    coalesce(c.stream_name = c.commands || case when strpos(c.commands, ':') > 0 then '+' else ':' end || 'reservation+' || c.reserver
      || substr(c.cause, strpos(c.cause, '-')) || '+' || c.key, false)
  from (
    select m.*, l.*, split_part(l.cause, '-', 1) as commands
    from dibs.messages m
    cross join lateral (
      select m.metadata #>> '{localProperties,reservedKey}' as key, nullif(m.metadata #>> '{localProperties,reservedFor}', '') as reserver,
        m.metadata ->> 'causationMessageStreamName' as cause, m.metadata ->> 'causationMessagePosition' as cause_position
    ) l
    where m.category = of_category and m.metadata::text like '%"reservedKey"%' and l.key <> ''
  ) c
  where strpos(c.cause, '-') > 1
$$;
