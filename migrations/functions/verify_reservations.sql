create or replace function dibs.verify_reservations(of_category text, max_violations integer)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language sql stable
as $$
  select 'reservations', of_category, null::text, null::bigint, null::bigint, null::text, null::text, count(*)
  from dibs.copies(of_category) c
  where c.leads and c.position = 0
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
    where c.leads and c.position > 0 or c.nth > 1
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
      'a reservation by ' || substring(of_category from '[^+]+$'), 'a message that is none', null::bigint
    from (
      select m.*, m.metadata ->> 'causationMessageStreamName' as cause, regexp_replace(of_category, '[:+]reservation[+][^:+]+$', '') as commands
      from dibs.messages m
      where m.category = of_category and of_category ~ '[:+]reservation[+][^:+]+$' and m.position = 0 and m.type not like 'dibs:%'
        and coalesce(m.metadata::text, '') not like '%"reservedKey"%'
    ) s
    where coalesce(s.cause || '+' || substring(s.stream_name from '[^+]*$') <> s.commands || substr(s.stream_name, strpos(s.stream_name, '-')), true)
    limit max_violations
  )
$$;
