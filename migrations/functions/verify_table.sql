-- # Verify
--
-- Whether a live store is as it should be. Each of these functions looks at the snapshot of its
-- caller's transaction: at REPEATABLE READ all of them see the same, and a write meanwhile raises
-- no false alarm. They answer with one row for each kind of thing that was looked at, with the
-- number in checked, and with one for each violation of a rule, at most max_violations of a kind.

-- The table as it is, read without an index.
create or replace function dibs.verify_table(categories text[] default null, max_violations integer default 100)
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
  select 'json', m.category, m.stream_name, m.position, m.global_position,
    'data and metadata that jsonb can hold',
    case when dibs.fits_jsonb(m.data) then 'metadata' else 'data' end || ' that cannot be cast to it', null::bigint
  from dibs.messages m
  where (categories is null or m.category = any (categories)) and not (dibs.fits_jsonb(m.data) and dibs.fits_jsonb(m.metadata))
  limit max_violations;

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

comment on function dibs.verify_table(text[], integer) is
'How many messages each category has, where data does not fit jsonb, ids and global positions are not unique or columns differ from the results of the
functions of their names, and the erased streams without a tombstone. Reads the whole table, without an index, also where
categories are named.';

grant execute on function dibs.verify_table to dibs_admin;
