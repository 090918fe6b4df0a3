create or replace function dibs.find_messages(stream text, ids uuid[])
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  found_messages integer;
begin
  -- Writers wait while it looks, so it looks for no more than one write can have.
  if stream is null then
    raise exception 'invalid stream: must be a stream name' using errcode = 'DB001', column = 'stream';
  end if;
  if ids is null or cardinality(ids) > 1000 then
    raise exception 'invalid ids: must be at most 1000' using errcode = 'DB001', column = 'ids';
  end if;
  perform dibs.lock_category(split_part(stream, '-', 1));
  return query
  select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from (select distinct u.id from unnest(ids) u (id)) r
  cross join lateral (select * from dibs.messages m where m.id = r.id limit 1) m
  where m.stream_name = stream
  order by m.position;
  get diagnostics found_messages = row_count;

  if found_messages < (select count(distinct u.id) from unnest(ids) u (id)) then
    -- A message that is missing may have been removed, so that the answer cannot be: not written.
    -- A tombstone comes first in a stream, unless the messages before it are being removed; then
    -- that begins above 0.
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream))
      or 0 < (select m.position from dibs.messages m where m.stream_name = stream order by m.position limit 1)
        and exists (
          select from dibs.messages m where m.stream_name = stream and m.type = 'dibs:Tombstone' order by m.position desc limit 1
        )
    then
      raise exception 'the stream was deleted, so it is no longer known what was written to it'
        using errcode = 'DB002', column = 'stream';
    end if;
    -- A snapshot may be from before the writes that it has waited for.
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
      raise exception 'what was not written is known at READ COMMITTED only, and this transaction is at %', current_setting('transaction_isolation')
        using errcode = 'feature_not_supported', hint = 'Ask in a transaction of its own, at READ COMMITTED.';
    end if;

    -- To a number that no writer knows, a writer from before a rollback of the store included.
    insert into dibs.fences as f (category, fence)
    values (split_part(stream, '-', 1), (extract(epoch from clock_timestamp()) * 1000000)::bigint)
    on conflict (category) do update set fence = greatest(f.fence + 1, excluded.fence);
  else
    perform dibs.await_standby();
  end if;
end
$$;

comment on function dibs.find_messages(text, uuid[]) is
'Those messages of a stream that have one of the ids. It waits for every write to the category that is under way, so that a
message that it does not find was not written; and it raises the category''s fence, which turns away a call of append with
fences that is on its way. That holds once this is committed. A trimmed message is not found either, so ask within the time that
dibs.trim spares. Raises DB001 for more than 1000 ids, and, if it does not find all, DB002 for a stream that was deleted and
0A000 above READ COMMITTED, where a transaction does not see the writes since it began.';

grant execute on function dibs.find_messages to dibs_writer, dibs_worker, dibs_operator;
