-- The checks of the whole store.
create or replace function dibs.verify_store(messages bigint default null, max_violations integer default 100)
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

comment on function dibs.verify_store(bigint, integer) is
'Whether the sequence is ahead of every global position and the unique indexes are there, and, with the number of messages
that verify_table counted, whether the index on id has as many.';

grant execute on function dibs.verify_store to dibs_admin;
