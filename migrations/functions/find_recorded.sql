-- The answer if the ids are recorded already: a duplicate for each stream, or the first conflict.
-- No row if none is.
create or replace function dibs.find_recorded(
  streams text[], expected bigint[], counts integer[],
  ids uuid[], types text[], data json[], metadata json[],
  out outcome text, out stream text, out version bigint, out global_position bigint, out id uuid, out "time" timestamptz
) returns setof record
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  recorded integer;
  at record;
begin
  select count(*) into recorded
  from unnest(ids) r (id)
  cross join lateral (select from dibs.messages m where m.id = r.id limit 1) m;
  if recorded = 0 then
    return;
  end if;

  select f.* into at
  from (
    select r.n, m.id, m.stream_name, m.position,
      m.stream_name <> s.name
        or m.type <> r.type
        or m.data::jsonb is distinct from r.data::jsonb
        or m.metadata::jsonb is distinct from r.metadata::jsonb
        or m.position <> lag(m.position) over (partition by s.name order by r.n) + 1 as differs
    from (
      select u.name, sum(u.count) over (order by u.n) as upto, u.count
      from unnest(streams, counts) with ordinality u (name, count, n)
    ) s
    join unnest(ids, types, data, metadata) with ordinality r (id, type, data, metadata, n)
      on r.n > s.upto - s.count and r.n <= s.upto
    left join lateral (select * from dibs.messages m where m.id = r.id limit 1) m on true
  ) f
  where f.id is not null and (f.differs or recorded < cardinality(ids))
  order by f.differs desc, f.n
  limit 1;
  if found then
    return query select 'id_conflict', at.stream_name, at.position, null::bigint, at.id, null::timestamptz;
    return;
  end if;

  -- A message that was there just now may have been trimmed since: then it is new.
  return query
  with asked as (
    select s.n, s.name, s.expected, s.count, m.position, m.global_position, m.time
    from (
      select u.*, sum(u.count) over (order by u.n) as upto
      from unnest(streams, expected, counts) with ordinality u (name, expected, count, n)
    ) s
    left join unnest(ids) with ordinality r (id, n) on s.count > 0 and r.n = s.upto
    left join lateral (select * from dibs.messages m where m.id = r.id limit 1) m on true
  )
  select 'duplicate', a.name, coalesce(a.position, case when a.expected <= -4 then dibs.stream_version(a.name) else a.expected end), coalesce(a.global_position, 0), null::uuid, a.time
  from asked a
  where not exists (select from asked gone where gone.count > 0 and gone.position is null)
  order by a.n;
end
$$;

comment on function dibs.find_recorded(text[], bigint[], integer[], uuid[], text[], json[], json[]) is
'The answer of append if some of the ids are recorded already; no row if none is.';