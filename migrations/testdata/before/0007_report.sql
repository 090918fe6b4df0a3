select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0007_report.sql', true);

do $migration$
declare
  caller constant pg_catalog.text := pg_catalog.current_setting('role');
  path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs')
  and pg_has_role(session_user, nspowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end);
perform dibs.begin_migration('0007_report.sql', '0006_retention.sql');

create function dibs.report(
  by text[], only_category text default null, containing text default null, sort text default 'name', max_rows bigint default null
)
returns table (
  names text[], messages bigint, bytes bigint, first_time timestamptz, last_time timestamptz,
  last_position bigint, last_global_position bigint, groups bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
begin
  if coalesce(cardinality(by), 0) not between 1 and 3 or not by <@ array['stream', 'type', 'category']
    or cardinality(by) <> (select count(distinct u.key) from unnest(by) u (key))
  then
    raise exception 'invalid report: it is by stream, type and category, each once' using errcode = 'DB001', column = 'by';
  end if;
  if sort is null or sort not in ('name', 'messages', 'bytes', 'last') then
    raise exception 'invalid order: it is name, messages, bytes or last' using errcode = 'DB001', column = 'sort';
  end if;
  if max_rows < 0 then
    raise exception 'invalid limit: it is less than 0' using errcode = 'DB001', column = 'max_rows';
  end if;

  return query
  with counted as materialized (
    select
      case by[1] when 'stream' then m.stream_name when 'type' then m.type when 'category' then m.category end as name1,
      case by[2] when 'stream' then m.stream_name when 'type' then m.type when 'category' then m.category end as name2,
      case by[3] when 'stream' then m.stream_name when 'type' then m.type when 'category' then m.category end as name3,
      count(*) as messages,
      sum(coalesce(pg_column_size(m.data), 0) + coalesce(pg_column_size(m.metadata), 0))::bigint as bytes,
      min(m.time) as first_time,
      max(m.time) as last_time,
      max(m.position) as last_position,
      max(m.global_position) as last_global_position
    from dibs.messages m
    where only_category is null or m.category = only_category
    group by 1, 2, 3
  ),
  kept as (
    select c.*, row_number() over (
      order by
        case sort when 'messages' then c.messages when 'bytes' then c.bytes end desc,
        case sort when 'last' then c.last_time end desc,
        c.name1 collate "C", c.name2 collate "C", c.name3 collate "C"
    ) as number
    from counted c
    where containing is null or strpos(c.name1, containing) > 0
  )
  select r.names, r.messages, r.bytes, r.first_time, r.last_time, r.last_position, r.last_global_position, r.groups
  from (
    select (array[k.name1, k.name2, k.name3])[1:cardinality(by)] as names, k.messages, k.bytes, k.first_time, k.last_time,
      k.last_position, k.last_global_position, null::bigint as groups, k.number
    from kept k
    where max_rows is null or k.number <= max_rows
    union all
    select null, coalesce(sum(c.messages), 0)::bigint, coalesce(sum(c.bytes), 0)::bigint, min(c.first_time), max(c.last_time),
      null, max(c.last_global_position), (select count(*) from kept), null
    from counted c
  ) r
  order by r.number nulls last;
end
$$;

create function dibs.categories(containing text default null) returns setof text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return query
  with recursive found (category) as (
    (select m.category from dibs.messages m order by m.category limit 1)
    union all
    select (select m.category from dibs.messages m where m.category > f.category order by m.category limit 1)
    from found f
    where f.category is not null
  )
  select f.category from found f
  where f.category is not null and (containing is null or strpos(f.category, containing) > 0)
  order by f.category;
end
$$;

create function dibs.count_category(
  category text, from_position bigint default 0, max_messages bigint default 100000,
  types text[] default null, correlation text default null, group_size integer default null, group_member integer default null
)
returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  perform dibs.refuse_invalid_page(from_position, 1);
  if max_messages is null or max_messages < 1 then
    raise exception 'invalid limit: it is at least 1' using errcode = 'DB001', column = 'max_messages';
  end if;
  if group_size is not null and (group_size not between 1 and 1024 or group_member is null or group_member < 0 or group_member >= group_size)
    or group_size is null and group_member is not null
  then
    raise exception 'invalid group: the size is 1 to 1024, and the member from 0 and less than the size'
      using errcode = 'DB001', column = 'group_member';
  end if;

  if cardinality(types) > 0 or correlation is not null or group_size > 1 then
    return (
      select count(*)
      from (
        select from dibs.messages m
        where m.category = count_category.category and m.global_position >= from_position
          and (coalesce(cardinality(types), 0) = 0 or m.type = any (types))
          and (correlation is null or m.correlation_category = correlation)
          and (group_size is null or abs(m.group_hash % group_size) = group_member)
        limit max_messages
      ) counted
    );
  end if;
  return (
    select count(*)
    from (
      select from dibs.messages m
      where m.category = count_category.category and m.global_position >= from_position
      limit max_messages
    ) counted
  );
end
$$;

create function dibs.verify_table(categories text[] default null, max_violations integer default 100)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_indexscan = off
set enable_indexonlyscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  counted record;
  wrong bigint := 0;
begin
  for counted in
    select m.category as name, count(*) as messages,
      count(*) filter (where m.category is distinct from w.category or m.group_hash is distinct from w.group_hash
        or m.correlation_category is distinct from w.correlation_category) as wrong
    from dibs.messages m
    cross join lateral dibs.derived(m.stream_name, m.metadata) w
    where categories is null or m.category = any (categories)
    group by m.category
    order by m.category
  loop
    rule := 'messages'; category := counted.name; checked := counted.messages;
    return next;
    wrong := wrong + counted.wrong;
  end loop;

  if wrong > 0 then
    return query
    select 'derived', m.category, m.stream_name, m.position, m.global_position,
      v.name || ' ' || coalesce(v.expected, 'null'), coalesce(v.found, 'null'), null::bigint
    from dibs.messages m
    cross join lateral dibs.derived(m.stream_name, m.metadata) w
    cross join lateral (values
      ('category', w.category, m.category),
      ('group_hash', w.group_hash::text, m.group_hash::text),
      ('correlation_category', w.correlation_category, m.correlation_category)
    ) v (name, expected, found)
    where (categories is null or m.category = any (categories)) and v.expected is distinct from v.found
    limit max_violations;
  end if;

  return query
  select 'unique', null::text, null::text, null::bigint, null::bigint,
    'one message with the id ' || m.id, count(*) || ' messages', null::bigint
  from dibs.messages m
  where categories is null or m.category = any (categories)
  group by m.id
  having count(*) > 1
  limit max_violations;

  return query
  select 'unique', null::text, null::text, null::bigint, m.global_position,
    'one message at this global position', count(*) || ' messages', null::bigint
  from dibs.messages m
  where categories is null or m.category = any (categories)
  group by m.global_position
  having count(*) > 1
  limit max_violations;

  if categories is null and exists (select from dibs.erased_streams) then
    return query
    select 'erased', null::text, null::text, null::bigint, null::bigint,
      format('a tombstone at position %s of the stream named by %s', e.version, encode(e.digest, 'hex')), 'none', null::bigint
    from dibs.erased_streams e
    where not exists (
      select from dibs.messages m
      where m.type = 'dibs:Tombstone' and m.position = e.version and m.stream_name = m.category || '-' || encode(e.digest, 'hex')
    )
    limit max_violations;
  end if;
end
$$;

create function dibs.derived(stream_name text, metadata json, out category text, out group_hash bigint, out correlation_category text)
language sql immutable parallel safe
as $$
  select dibs.category(stream_name), dibs.group_hash(stream_name), dibs.correlation_category(metadata)
$$;

create function dibs.verify_store(messages bigint default null, max_violations integer default 100)
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
  greatest_position bigint;
  of_sequence record;
begin
  select max(m.global_position) into greatest_position from dibs.messages m;
  select s.last_value, s.is_called into of_sequence from dibs.messages_global_position_seq s;
  if greatest_position > of_sequence.last_value or greatest_position = of_sequence.last_value and not of_sequence.is_called then
    return query select 'sequence', null::text, null::text, null::bigint, greatest_position,
      'a sequence at this global position or after', 'a sequence at ' || of_sequence.last_value, null::bigint;
  end if;
  return query
  select 'sequence', null::text, null::text, null::bigint, null::bigint,
    'a sequence that goes on by 1, keeps no positions back and does not begin again',
    format('increment %s, cache %s, %s', q.seqincrement, q.seqcache, case when q.seqcycle then 'cycle' else 'no cycle' end), null::bigint
  from pg_sequence q
  where q.seqrelid = 'dibs.messages_global_position_seq'::regclass and (q.seqincrement <> 1 or q.seqcache <> 1 or q.seqcycle);

  return query
  select 'indexes', null::text, null::text, null::bigint, null::bigint, 'a valid unique index on ' || array_to_string(w.columns, ', '), 'none', null::bigint
  from (values (array['category', 'global_position']), (array['stream_name', 'position']), (array['id'])) w (columns)
  where not exists (
    select from pg_index i
    where i.indrelid = 'dibs.messages'::regclass and i.indisunique and i.indisvalid and i.indisready and i.indimmediate
      and i.indpred is null and i.indexprs is null
      and (select array_agg(a.attname::text order by k.n)
        from unnest(i.indkey::smallint[]) with ordinality k (attnum, n)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
        where k.n <= i.indnkeyatts) = w.columns
  );

  if messages is not null then
    select count(*) into counted from dibs.messages m where m.id >= '00000000-0000-0000-0000-000000000000';
    if counted <> messages then
      return query select 'indexes', null::text, null::text, null::bigint, null::bigint,
        messages || ' messages by the index on id', counted || ' messages', null::bigint;
    end if;
  end if;

  return query
  select 'erased', null::text, null::text, null::bigint, null::bigint, null::text, null::text, count(*) from dibs.erased_streams;
end
$$;

create function dibs.steps(of_category text)
returns table (stream_name text, "position" bigint, global_position bigint, previous bigint, previous_global bigint)
language sql stable
as $$
  select m.stream_name, m.position, m.global_position, lag(m.position) over w, lag(m.global_position) over w
  from dibs.messages m
  where m.category = of_category
  window w as (partition by m.stream_name order by m.position, m.global_position)
$$;

create function dibs.begins_rightly(stream text, "position" bigint) returns boolean
language sql stable
as $$
  select exists (
      select from dibs.messages m
      where m.stream_name = begins_rightly.stream and m.position >= begins_rightly.position and m.type = 'dibs:Tombstone'
    )
    or stream ~ '^[^-]*[:+]retention-'
    or exists (
      select from dibs.messages m
      where m.stream_name = dibs.retention_stream(begins_rightly.stream) and m.type = 'dibs:Tombstone'
    )
    or exists (
      select from dibs.erased_streams e where e.digest = dibs.name_digest(dibs.retention_stream(begins_rightly.stream))
    )
    or exists (
      select from dibs.messages m
      cross join lateral (select case when dibs.storable_json(m.data) then m.data end as data) d
      where m.stream_name = dibs.retention_stream(begins_rightly.stream) and m.type = 'dibs:Trimmed'
        and d.data ->> 'stream' = begins_rightly.stream and d.data ->> 'upTo' = (begins_rightly.position - 1)::text
    )
$$;

create function dibs.verify_category(of_category text, messages bigint default null, max_violations integer default 100)
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
      and (v.rule <> 'dense' or s.stream_name !~ '^[^-]+-[0-9a-f]{64}$' or not exists (
        select from dibs.messages m where m.stream_name = s.stream_name and m.position = s.position and m.type = 'dibs:Tombstone'
      ))
    limit max_violations;
  end if;

  if late > 0 then
    return query
    select 'dense', of_category, s.stream_name, s.position, s.global_position, 'position 0, or a record of what was removed',
      'position ' || s.position, null::bigint
    from dibs.steps(of_category) s
    where s.previous is null and s.position <> 0 and not dibs.begins_rightly(s.stream_name, s.position)
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
  elsif of_category ~ '[:+]deadLetter$' then
    return query select * from dibs.verify_dead_letters(of_category, max_violations);
  end if;
end
$$;

create function dibs.copies(of_category text)
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

create function dibs.verify_reservations(of_category text, max_violations integer)
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
$$;

create function dibs.kept_positions(of_category text)
returns table (
  stream_name text, "position" bigint, global_position bigint, type text,
  name text, generation bigint, member bigint, kept numeric, size numeric, reset boolean, after text,
  previous numeric, latest boolean, ledger boolean
)
language sql stable
as $$
  select k.*, lag(k.kept) over (partition by k.stream_name order by k.position),
    lead(k.position) over (partition by k.stream_name order by k.position) is null,
    coalesce(bool_or(k.generation is null and k.type in ('Resized', 'dibs:Tombstone')) over (partition by k.name), false)
  from (
    select m.stream_name, m.position, m.global_position, m.type,
      regexp_replace(i.id, '[+][0-9]{1,18}[+][0-9]{1,9}$', '') as name,
      substring(i.id from '[+]([0-9]{1,18})[+][0-9]{1,9}$')::bigint as generation,
      substring(i.id from '[+][0-9]{1,18}[+]([0-9]{1,9})$')::bigint as member,
      case when d.data ->> (case m.type when 'Resized' then 'start' else 'position' end) ~ '^-?[0-9]{1,19}$'
        then (d.data ->> (case m.type when 'Resized' then 'start' else 'position' end))::numeric end as kept,
      case when d.data ->> 'size' ~ '^-?[0-9]{1,19}$' then (d.data ->> 'size')::numeric end as size,
      coalesce(d.data ->> 'reset' = 'true', false) as reset,
      substring(lower(d.data ->> 'after') from '^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$') as after
    from dibs.messages m
    cross join lateral (select substr(m.stream_name, strpos(m.stream_name, '-') + 1) as id) i
    cross join lateral (select case when dibs.storable_json(m.data) then m.data end as data) d
    where m.category = of_category and strpos(m.stream_name, '-') > 0
  ) k
$$;

create function dibs.verify_consumers(of_category text, max_violations integer)
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
    select l.name, l.position as generation, l.size, l.kept as start from k l where l.generation is null and l.type = 'Resized'
  ), ledgers as (
    select l.name, max(l.position) as last from k l where l.generation is null group by l.name
  ), reached as (
    select g.name, g.generation, case when count(m.last) < g.size then g.start else min(m.last) end as "position"
    from generations g
    left join (
      select p.name, p.generation, p.member, max(p.kept) as last from k p where p.type = 'Recorded' group by p.name, p.generation, p.member
    ) m on m.name = g.name and m.generation = g.generation and m.member < g.size
    where not exists (select from k d where d.type = 'dibs:Tombstone')
    group by g.name, g.generation, g.size, g.start
  )
  select v.rule, of_category, k.stream_name, k.position, k.global_position, v.expected, v.found, null::bigint
  from k
  left join generations g on g.name = k.name and g.generation = k.generation
  left join ledgers l on l.name = k.name
  left join reached r on r.name = k.name and k.generation is null and r.generation = k.position - 1
  left join lateral (
    select m.id
    from dibs.messages m
    where m.category = consumed and m.global_position = case when k.kept between 1 and 9223372036854775807 then (k.kept - 1)::bigint end
      and k.after is not null and k.latest and k.ledger and coalesce(k.generation, k.position) = l.last
  ) w on true
  cross join lateral (values
    ('ledger', k.generation is null and k.ledger and (k.type <> 'Resized' or k.size is null or k.kept is null or k.size not between 1 and 1024 or k.kept < 0),
      'a Resized with a size of 1 to 1024 and a start', k.type),
    ('ledger', k.type = 'Resized' and not k.reset and k.kept > r.position,
      'a start not after ' || r.position || ', up to where the generation before has handled all', k.kept::text),
    ('ledger', k.generation is not null and not k.ledger, 'a ledger that starts generation ' || k.generation, 'none'),
    ('ledger', k.generation is not null and k.ledger and k.generation > l.last,
      'a generation that the ledger starts, up to ' || l.last, 'generation ' || k.generation),
    ('ledger', k.member >= g.size, 'a member of a group of ' || g.size, 'member ' || k.member),
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

create function dibs.verify_dead_letters(of_category text, max_violations integer)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language plpgsql stable
as $$
declare
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

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0007_report.sql', '1ef48d68a8e1c613e309df74ff3094fa1e636e7c3729a57dba40296fb06fb8a2');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
