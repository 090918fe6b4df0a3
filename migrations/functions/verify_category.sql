create or replace function dibs.verify_category(of_category text, messages bigint default null, max_violations integer default 100)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  counted bigint;
  late bigint;
  wrong bigint;
  any_erased constant boolean := exists (select from dibs.erased_streams);
begin
  if messages is not null then
    select count(*) into counted from dibs.messages m where m.category = of_category;
    if counted <> messages then
      return query select 'indexes', of_category, null::text, null::bigint, null::bigint,
        messages || ' messages by the index on category and global position', counted || ' messages', null::bigint;
    end if;
    select count(*) into counted from dibs.messages m
    where m.stream_name >= of_category || '-' and m.stream_name < of_category || '.' or m.stream_name = of_category;
    if counted <> messages then
      return query select 'indexes', of_category, null::text, null::bigint, null::bigint,
        messages || ' messages by the index on stream and position', counted || ' messages', null::bigint;
    end if;
  end if;

  select count(*) filter (where s.previous is null),
    count(*) filter (where s.previous is null and s.position <> 0),
    count(*) filter (where s.position <> s.previous + 1 or s.global_position <= s.previous_global)
  into counted, late, wrong
  from dibs.steps(of_category) s;
  return query select 'streams', of_category, null::text, null::bigint, null::bigint, null::text, null::text, counted;

  if wrong > 0 then
    return query
    select v.rule, of_category, s.stream_name, s.position, s.global_position, v.expected, v.found, null::bigint
    from dibs.steps(of_category) s
    cross join lateral (values
      ('unique', s.position = s.previous, 'one message at the position', 'one more'),
      ('dense', s.position > s.previous + 1, 'position ' || (s.previous + 1), 'position ' || s.position),
      ('order', s.global_position <= s.previous_global, 'a global position after ' || s.previous_global, s.global_position::text)
    ) v (rule, holds, expected, found)
    where v.holds
      -- The tombstone of an erased stream comes where that ended, also between messages of another
      -- client.
      and (v.rule <> 'dense' or s.stream_name !~ '^[^-]+-[0-9a-f]{64}$' or not exists (
        select from dibs.messages m where m.stream_name = s.stream_name and m.position = s.position and m.type = 'dibs:Tombstone'
      ))
    -- The latest first: the gaps that an adoption took over may be more than are listed.
    order by s.global_position desc
    limit max_violations;
  end if;

  if late > 0 then
    return query
    select 'dense', of_category, s.stream_name, s.position, s.global_position, 'position 0, or a record of what was removed',
      'position ' || s.position, null::bigint
    from dibs.steps(of_category) s
    where s.previous is null and s.position <> 0 and not dibs.begins_rightly(s.stream_name, s.position)
    order by s.global_position desc
    limit max_violations;
  end if;

  if any_erased then
    return query
    select 'erased', of_category, s.stream_name, s.position, s.global_position,
      'no message: the stream was erased', 'position ' || s.position, null::bigint
    from dibs.steps(of_category) s
    join dibs.erased_streams e on e.digest = dibs.name_digest(s.stream_name)
    where s.previous is null
    limit max_violations;
  end if;

  return query select * from dibs.verify_reservations(of_category, max_violations);
  if of_category ~ '[:+]position$' then
    return query select * from dibs.verify_consumers(of_category, max_violations);
  end if;
end
$$;

comment on function dibs.verify_category(text, bigint, integer) is
'Whether the streams of a category are dense and in order, each key has one winner, and consumers are not ahead; and, with the number of messages that verify_table counted, whether the indexes have as many.';

grant execute on function dibs.verify_category to dibs_admin;
