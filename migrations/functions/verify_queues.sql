-- The state of the queues: what a row says is borne out by the head, the messages, the sessions and the log.
create or replace function dibs.verify_queues(categories text[] default null, max_violations integer default 100)
returns table (
  rule text, category text, stream text, "position" bigint, global_position bigint, expected text, found text, checked bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  q record;
  h dibs.queue_heads;
begin
  if not pg_is_in_recovery() then -- where an unlogged table cannot be read
    return query
    select 'queue', split_part(s.stream, '-', 1), s.stream, null::bigint, null::bigint, 'message ' || s.id || ': appended by its transaction', 'staged', null::bigint
    from dibs.staged s
    where s.xact is distinct from pg_current_xact_id_if_assigned() and (categories is null or split_part(s.stream, '-', 1) = any (categories))
    limit max_violations;
  end if;

  for q in
    select x.id, x.name, x.category, coalesce(x.streams, false) as streams from dibs.queues x where x.removed is null and (categories is null or x.category = any (categories)) order by x.name
  loop
    return query select 'queues', q.category, null::text, null::bigint, null::bigint, null::text, null::text, 1::bigint;
    select x.* into h from dibs.queue_heads x where x.queue = q.id order by x.version desc limit 1;

    return query
    select 'queue', q.category, null::text, null::bigint, null::bigint, 'queue ' || q.name || ': ' || v.expected, v.found, null::bigint
    from (
      select x.version, x.cursor, lag(x.version) over w as version_before, lag(x.cursor) over w as cursor_before
      from dibs.queue_heads x where x.queue = q.id
      window w as (order by x.version)
    ) x
    cross join lateral (values
      ('head ' || (x.version_before + 1), 'head ' || x.version, x.version > x.version_before + 1),
      ('a cursor at ' || x.cursor_before || ' or later', 'head ' || x.version || ' at ' || x.cursor, x.cursor < x.cursor_before)
    ) v (expected, found, holds)
    where v.holds
    union all
    select 'queue', q.category, null, null, null, 'queue ' || q.name || ': ' || v.expected, v.found, null
    from (values
      ('a cursor that is not ahead of ' || q.category, h.cursor::text, h.cursor <> 4611686018427387904 and h.cursor > coalesce((
        select m.global_position from dibs.messages m where m.category = q.category order by m.global_position desc limit 1
      ), 0)),
      ('a head that counts the held rows', h.held || ' of ' || (
        select count(*) from dibs.queue_open o where o.queue = q.id and o.after > 0
      ), coalesce(h.held, 0) < (select count(*) from dibs.queue_open o where o.queue = q.id and o.after > 0))
    ) v (expected, found, holds)
    where v.holds
    limit max_violations;

    return query
    select 'queue', q.category, m.stream_name, m.position, o.position, 'queue ' || q.name || ': ' || v.expected, v.found, null::bigint
    from dibs.queue_open o
    left join dibs.messages m on m.category = q.category and m.global_position = o.position
    left join dibs.messages b on b.category = q.category and b.global_position = o.after
    cross join lateral (
      select count(*) filter (where l.version < o.version) as before,
        count(*) filter (where l.version > o.version or l.version = o.version and o.state <> 'z') as beyond
      from dibs.queue_log l where l.queue = q.id and l.position = o.position
    ) l
    cross join lateral (values
      ('no row beyond the cursor at ' || coalesce(h.cursor, 0), 'one', o.position > coalesce(h.cursor, 0)),
      ('no row before the floor at ' || h.floor, 'one', o.position < h.floor),
      ('a message', 'none', m.id is null and o.state <> 'z' and h.cursor <> 4611686018427387904),
      ('a session that has it', coalesce(o.session::text, 'none'), o.state = 'o' and not exists (
        select from dibs.queue_sessions s where s.queue = q.id and s.session = o.session
      )),
      ('a date from ' || least(h.due, h.wake) || ' on', coalesce(o.due::text, 'none'), o.state = 'l' and case when o.ends > 1 then o.after = 0 and o.due is not null and h.suspects else o.due >= h.due and o.after is null end is not true),
      ('a date from ' || h.wake || ' on', coalesce(o.due::text, 'none'), q.streams and o.state = 's' and (o.due >= h.wake and o.after is null) is not true),
      ('the first message of its stream, out, later, suspended or dead', o.state::text || ' at ' || m.position, q.streams and (m.position > 0 or o.state in ('h', 'z'))),
      ('no row that is suspended or was woken', o.state::text || ' woken by ' || coalesce(o.woken::text, 'none'), not q.streams and (o.state = 's' and h.cursor <> 4611686018427387904 or o.woken is not null)),
      ('the message before it in its stream', coalesce(o.after::text, 'none'), o.state in ('h', 'z') and not h.linked and (
        o.after < o.position and (b.id is null or m.id is null or b.stream_name = m.stream_name and b.position = m.position - 1)
      ) is not true),
      ('another of its stream that it is behind', coalesce(o.after::text, 'none'), h.linked and (case o.state
        when 'o' then coalesce(o.after, o.position) <> o.position
        when 'h' then coalesce(o.after, 0) in (0, o.position)
        when 'z' then o.after is null
      end or o.after > 0 and b.stream_name <> m.stream_name)),
      ('failures up to its version, ' || o.version, o.failures::text, o.failures not between 0 and case when h.cursor = 4611686018427387904 then 32767 else o.version end),
      ('a log of what ended the ' || o.version || ' versions before', l.before || ' entries before, and ' || l.beyond || ' of later ones', l.before <> o.version and not q.streams or l.beyond > 0)
    ) v (expected, found, holds)
    where o.queue = q.id and v.holds
    order by o.position
    limit max_violations;

    return query
    select 'queue', q.category, x.stream_name, null::bigint, x.position, 'queue ' || q.name || ': one item of its stream that is out or later', x.n::text, null::bigint
    from (
      select m.stream_name, max(o.position) as position, count(*) as n
      from dibs.queue_open o
      join dibs.messages m on m.category = q.category and m.global_position = o.position
      where o.queue = q.id and o.state in ('o', 'l') and not q.streams
      group by m.stream_name
    ) x
    where x.n > 1
    order by x.position
    limit max_violations;

    return query
    select 'queue', q.category, null::text, null::bigint, l.position, 'queue ' || q.name || ': ' || v.expected, v.found, null::bigint
    from (
      select x.position, count(*) as entries, max(x.version) as last, bool_and(x.what = 'C') as cancelled
      from dibs.queue_log x where x.queue = q.id
      group by x.position
    ) l
    cross join lateral (values
      ('a log without a gap up to version ' || l.last, l.entries || ' entries', l.entries <> l.last + 1 and not q.streams),
      ('no log beyond the cursor at ' || coalesce(h.cursor, 0) || ' but of what was cancelled', 'one', l.position > coalesce(h.cursor, 0) and not l.cancelled)
    ) v (expected, found, holds)
    where v.holds
    order by l.position
    limit max_violations;
  end loop;
end
$$;

comment on function dibs.verify_queues(text[], integer) is
'Whether the open items of the queues are as their heads, messages, sessions and logs have them.';

grant execute on function dibs.verify_queues to dibs_admin;
