create or replace function dibs.verify_reservations(of_category text, max_violations integer)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language sql stable
as $$
  -- A key that expires has one winner after another in its stream: each but the first says that the
  -- one before it had expired.
  select 'reservations', of_category, null::text, null::bigint, null::bigint, null::text, null::text, count(*)
  from dibs.copies(of_category) c
  where c.leads and (c.position = 0 or exists (
    select from dibs.messages m
    where m.stream_name = c.stream_name and m.position = c.position and m.metadata #>> '{localProperties,reservedExpired}' <> ''
  ))
  having count(*) > 0
  union all
  (
    select 'reservation', of_category, c.stream_name, c.position, c.global_position,
      'one winner for the key ' || c.key || coalesce(' of ' || c.reserver, '') || ', at position 0',
      case when c.leads and c.position > 0 then 'one more in the stream' else 'one in another stream' end, null::bigint
    from (
      select c.*, row_number() over (partition by c.cause, c.reserver, c.key order by c.leads desc, c.global_position) as nth
      from dibs.copies(of_category) c
    ) c
    where (c.leads and c.position > 0 or c.nth > 1) and not (c.leads and c.position > 0 and exists (
        select from dibs.messages m
        where m.stream_name = c.stream_name and m.position = c.position and m.metadata #>> '{localProperties,reservedExpired}' <> ''
      ))
    limit max_violations
  )
  union all
  (
    -- reservation.DeriveID, of which the first six bytes are a time
    select 'reservation', of_category, c.stream_name, c.position, c.global_position,
      'an id derived from ' || s.stream_name || '@' || s.position, c.id::text, null::bigint
    from dibs.copies(of_category) c
    join dibs.messages s on s.stream_name = c.cause and s.position = c.cause_position
    cross join lateral (
      select sha256(uuid_send(s.id) || convert_to(c.stream_name, 'UTF8')) as h, uuid_send(c.id) as id
    ) d
    where c.leads and c.position = 0
      and substr(d.id, 7) <> set_byte(set_byte(substr(d.h, 1, 10), 0, get_byte(d.h, 0) & 15 | 112), 2, get_byte(d.h, 2) & 63 | 128)
    limit max_violations
  )
  union all
  (
    -- what a reserver answers with NoReservationError: its place is taken, and not by a copy
    select 'reservation', of_category, s.stream_name, s.position, s.global_position,
      'a reservation by ' || s.ids[cardinality(s.ids) - 1], 'a message that is none', null::bigint
    from (
      select m.*, m.metadata ->> 'causationMessageStreamName' as cause,
        string_to_array(substr(m.stream_name, strpos(m.stream_name, '-') + 1), '+') as ids
      from dibs.messages m
      where m.category = of_category and m.position = 0 and m.stream_name like '%+%+%' and m.type not like 'dibs:%'
    ) s
    cross join lateral (select '+' || s.ids[cardinality(s.ids) - 1] || '+' || s.ids[cardinality(s.ids)] as name) suffix
    where cardinality(s.ids) > 2
      and s.ids[cardinality(s.ids) - 1] in (select c.reserver from dibs.copies(of_category) c where c.leads)
      and coalesce(s.cause || suffix.name <> s.stream_name
        and of_category || '-' || split_part(substr(s.cause, strpos(s.cause, '-') + 1), '+', 1) || suffix.name <> s.stream_name, true)
    limit max_violations
  )
$$;
