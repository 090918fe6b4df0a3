-- A message that a consumer parked is where the dead letter says, or was removed.
create or replace function dibs.verify_dead_letters(of_category text, max_violations integer)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language plpgsql stable
as $$
declare
  -- Streams of other forms are of other clients.
  ours constant text := '^[^-]*-[^-+:]+[+][0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$';
begin
  return query
  select 'deadLetters', of_category, null::text, null::bigint, null::bigint, null::text, null::text, count(*)
  from dibs.messages m
  where m.category = of_category and m.type = 'Parked' and m.stream_name ~ ours;

  return query
  select 'deadLetter', of_category, p.stream_name, p.position, p.global_position,
    case when p.message_id is null or p.of_stream is null or p.of_position is null then 'the id, stream and position of a message'
      else format('the message %s at %s@%s', p.message_id, p.of_stream, p.of_position) end,
    coalesce(m.id::text, 'none'), null::bigint
  from (
    select m.stream_name, m.position, m.global_position, d.data ->> 'messageId' as message_id, d.data ->> 'stream' as of_stream,
      case when d.data ->> 'position' ~ '^[0-9]{1,18}$' then (d.data ->> 'position')::bigint end as of_position
    from dibs.messages m
    cross join lateral (select case when dibs.storable_json(m.data) then m.data end as data) d
    where m.category = of_category and m.type = 'Parked' and m.stream_name ~ ours
  ) p
  left join dibs.messages m on m.stream_name = p.of_stream and m.position = p.of_position
  where case
    when m.id is not null then m.id::text is distinct from lower(p.message_id)
    else not exists (select from dibs.messages l where l.stream_name = p.of_stream and l.position > p.of_position)
      and not exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(p.of_stream))
  end
  limit max_violations;
end
$$;
