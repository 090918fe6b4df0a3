create or replace function dibs.queue_item(queue_name text, of_category text, of_position bigint)
returns table (
  "position" bigint, state text, version integer, failures integer, session bigint, until bigint, due bigint, after bigint, error text, note text,
  id uuid, stream_name text, stream_position bigint, type text, data text, metadata text, "time" bigint, log json
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  q constant integer := (select x.id from dibs.queues x where x.name = queue_name and x.category = of_category);
  streams constant boolean := coalesce((select x.streams from dibs.queues x where x.id = q), false);
  cursor constant bigint := coalesce((select x.cursor from dibs.queue_heads x where x.queue = q order by x.version desc limit 1), 0);
  entries constant json := (
    select json_agg(json_build_object(
      'version', x.version, 'what', x.what::text, 'time', dibs.microseconds(x.at), 'session', coalesce(x.session, 0), 'text', coalesce(x.text, '')
    ) order by x.version)
    from dibs.queue_log x
    where x.queue = q and x.position = of_position
  );
begin
  return query
  select of_position,
    coalesce(case o.state when 'z' then 'f' else o.state::text end, case
      when m.global_position > cursor and not exists (select from dibs.queue_log x where x.queue = q and x.position = of_position and x.what = 'C') then 'w'
      else 'f' end),
    coalesce(o.version, (entries -> -1 ->> 'version')::integer + 1, 0), coalesce(o.failures::integer, 0), o.session, dibs.microseconds(s.until),
    dibs.microseconds(coalesce(o.due, dibs.queue_due(m.metadata))), case when o.state in ('h', 'z') and o.after <> o.position then o.after end, o.error,
    s.notes ->> (o.position || '.' || o.version),
    m.id, m.stream_name, m.position, m.type, m.data::text, m.metadata::text, dibs.microseconds(m.time), entries
  from (select 1) one
  left join dibs.messages m on m.category = of_category and m.global_position = of_position and m.type <> 'dibs:Tombstone' and (m.position = 0 or not streams)
  left join dibs.queue_open o on o.queue = q and o.position = of_position
  left join dibs.queue_sessions s on s.queue = q and s.session = o.session and o.state = 'o'
  where m.id is not null and (cursor <> 4611686018427387904 or entries is not null) or o.state is not null;
end
$$;

comment on function dibs.queue_item(text, text, bigint) is
'What is known of the item at a position: its state (w beyond the cursor, o, l, s, h, d, k, or f finished), its message, and its log.';

grant execute on function dibs.queue_item to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
