create or replace function dibs.category_streams(category text, after text default null, max_streams integer default 1000)
returns table (stream_name text, first_position bigint, version bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
  if category is null or category = '' or strpos(category, '-') > 0 then
    raise exception 'invalid category: must be the name of a category' using errcode = 'DB001', column = 'category';
  end if;
  if max_streams is null or max_streams not between 1 and 10000 then
    raise exception 'invalid max_streams: must be between 1 and 10000' using errcode = 'DB001', column = 'max_streams';
  end if;
  -- From one name to the next by the index: the length of a stream does not count.
  stream_name := after;
  for n in 1..max_streams loop
    select m.stream_name into stream_name
    from dibs.messages m
    where m.stream_name > coalesce(category_streams.stream_name, '')
      and m.stream_name >= category_streams.category and m.stream_name < category_streams.category || '.'
      and (m.stream_name = category_streams.category or m.stream_name >= category_streams.category || '-')
    order by m.stream_name
    limit 1;
    exit when not found;
    select m.position into first_position from dibs.messages m
    where m.stream_name = category_streams.stream_name order by m.position limit 1;
    select m.position into version from dibs.messages m
    where m.stream_name = category_streams.stream_name order by m.position desc limit 1;
    return next;
  end loop;
end
$$;

comment on function dibs.category_streams(text, text, integer) is
'The streams of a category in order of their names, after a name: at most max_streams, which is 1 to 10000.';

grant execute on function dibs.category_streams to dibs_admin;
