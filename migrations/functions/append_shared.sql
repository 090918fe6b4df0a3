-- One message of a transaction that ends now, at the lock that such transactions share: scalars, one look
-- and one plain INSERT. A client sends one call for each message, and COMMIT behind them. It sends them in
-- the order of their streams' names by bytes, as lock_shared and append lock, or two of them may deadlock.
create or replace function dibs.append_shared(
  stream text, expected bigint, message_id uuid, type text, data json, metadata json,
  fence bigint default null, marked boolean default false,
  out version bigint, out global_position bigint, out "time" timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- as in append
as $$
declare
  stream_category constant text := split_part(stream, '-', 1);
  done boolean;
  outcome text;
  current constant boolean := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
begin
  if current_setting('dibs.staged', true) = 'true' then
    perform dibs.refuse_staged(array[stream]);
  end if;
  if stream <> '' and expected >= -2 and message_id <> '00000000-0000-0000-0000-000000000000'
    and (current or marked is null)
  then
    if marked then
      -- As lock_shared has them, which a call to it would cost twice as much.
      done := pg_advisory_xact_lock_shared(1684628083, dibs.lock_key(stream_category)) is null;
      done := pg_advisory_xact_lock(1684628084, hashtext(stream)) is null;
      done := pg_advisory_xact_lock_shared(dibs.floor_class(stream_category),
        (coalesce(pg_sequence_last_value('dibs.messages_global_position_seq'), dibs.drawn()) & 4294967295)::bit(32)::integer) is null;
    elsif not marked then
      perform dibs.lock_shared(array[stream]);
    end if;

    -- A statement of its own: its snapshot is younger than the locks. A stream of a category of which one
    -- was erased may be that one.
    select
      coalesce((select m.position from dibs.messages m where m.stream_name = append_shared.stream order by m.position desc limit 1), -1),
      (select f.shared and not f.erased and f.fence = coalesce(append_shared.fence, f.fence) from dibs.fences f where f.category = stream_category)
    into version, done;
    if done and (expected = version or expected = -2) and (version >= 0 or dibs.valid_stream_name(stream))
      and dibs.valid_type(type) and dibs.valid_content(data, metadata)
    then
      insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
      values (stream_category, dibs.group_hash(append_shared.stream), dibs.correlation_category(append_shared.metadata),
        append_shared.stream, append_shared.version + 1, append_shared.type, message_id, append_shared.data, append_shared.metadata)
      returning m.position, m.global_position, m.time into version, global_position, time;
      return;
    end if;
    if marked and not exists (select from dibs.fences f where f.category = stream_category and f.shared) then
      -- To mark it takes the category's lock, and two such transactions would wait for each other's share.
      raise exception 'category % is not marked as shared', stream_category using errcode = 'serialization_failure';
    end if;
  end if;

  select a.outcome, a.version, a.global_position, a.time into outcome, version, global_position, time
  from dibs.append(array[stream], array[expected], array[1], array[message_id], array[type], array[data], array[metadata],
    case when fence is not null then array[fence] end, shared => true) a;
  if outcome <> 'written' then
    raise exception 'the message was not written: %', outcome using errcode = 'DB003', hint = 'Call append in another transaction: it returns the answer.';
  end if;
end
$$;

comment on function dibs.append_shared(text, bigint, uuid, text, json, json, bigint, boolean) is
'append with shared for one message, at a third of the price, for a transaction that ends now. Answers with the version, the global
position and the time of the message. If it is not written, raises DB003, or 23505 where its id is recorded already: append tells
the answer in another transaction. marked says that the category was written to in such a transaction before; if that is not so,
raises 40001; null says that lock_shared has locked the stream already, also above READ COMMITTED. Several calls of one transaction come in the order of their streams'' names by bytes. Does not notify: see ring. As
with append_one, the client validates the content of the messages.';

grant execute on function dibs.append_shared to dibs_writer, dibs_worker, dibs_operator;
