create or replace function dibs.report(
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
    raise exception 'invalid report: must be by stream, type and category, each at most once' using errcode = 'DB001', column = 'by';
  end if;
  if sort is null or sort not in ('name', 'messages', 'bytes', 'last') then
    raise exception 'invalid order: must be name, messages, bytes or last' using errcode = 'DB001', column = 'sort';
  end if;
  if max_rows < 0 then
    raise exception 'invalid limit: must be at least 0' using errcode = 'DB001', column = 'max_rows';
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

comment on function dibs.report(text[], text, text, text, bigint) is
'How many messages there are by one or more of stream, type and category: a row for each, named in that order, with the
bytes that data and metadata take up in the table, and the times and positions of the first and last. It counts those of
one category or, if that is null, all, which reads the whole table; containing keeps the rows whose first name holds the
text. Sorted by name, or by messages, bytes or last, the most first; at most max_rows.

After the rows comes one without names: the totals, and in groups how many rows there are without max_rows.';

grant execute on function dibs.report to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
