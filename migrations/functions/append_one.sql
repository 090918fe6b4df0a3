-- append for one message, at half the price: the message is checked and added without sets. A
-- message that does not fit is left to append, which finds out why.
create or replace function dibs.append_one(
  stream text, expected bigint, message_id uuid, type text, data json, metadata json,
  fence bigint default null, notify boolean default false, meet boolean default false,
  out outcome text, out version bigint, out global_position bigint, out id uuid, out "time" timestamptz,
  out met_type text, out met_data json, out met_metadata json, out met_at timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off -- a plan made for an empty table is kept when it grows
as $$
declare
  stream_category constant text := split_part(stream, '-', 1);
  fence_found bigint; -- -1 if a stream of the category was erased, perhaps this one
begin
  if current_setting('dibs.staged', true) = 'true' then
    perform dibs.refuse_staged(array[stream]);
  end if;
  if stream <> '' and expected >= -2 and message_id <> '00000000-0000-0000-0000-000000000000'
    and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
  then
    if not pg_try_advisory_xact_lock(1684628083, dibs.lock_key(stream_category)) then
      perform dibs.wait_for_category(stream_category);
    end if;

    -- A statement of its own: its snapshot is younger than the lock.
    select
      coalesce((select m.position from dibs.messages m where m.stream_name = append_one.stream order by m.position desc limit 1), -1),
      coalesce((select case when not f.erased then f.fence else -1 end from dibs.fences f where f.category = stream_category), 0)
    into version, fence_found;

    if fence_found < 0 or fence <> fence_found then
      null;
    elsif expected = version or expected = -2 then
      if (version >= 0 or dibs.valid_stream_name(stream)) and dibs.valid_type(type) and dibs.valid_content(data, metadata) then
        insert into dibs.messages as m (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
        values (stream_category, dibs.group_hash(append_one.stream), dibs.correlation_category(append_one.metadata),
          append_one.stream, append_one.version + 1, append_one.type, message_id, append_one.data, append_one.metadata)
        returning m.position, m.global_position, m.time into version, global_position, time;
        if notify and dibs.listened() then
          perform pg_notify('dibs_messages', 'dibs.' || stream_category || '-' || global_position);
        end if;
        outcome := 'written';
        return;
      end if;
    elsif not exists (select from dibs.messages m where m.id = message_id) then
      perform dibs.await_standby();
      outcome := 'version_conflict';
      if meet then
        outcome := 'met';
        met_at := clock_timestamp();
        select l.global_position, l.id, l.time, l.type, l.data, l.metadata
        into global_position, id, time, met_type, met_data, met_metadata
        from dibs.last_met(stream) l;
      end if;
      return;
    end if;
  end if;

  select a.outcome, a.version, a.global_position, a.id, a.time, a.met_type, a.met_data, a.met_metadata, a.met_at
  into outcome, version, global_position, id, time, met_type, met_data, met_metadata, met_at
  from dibs.append(array[stream], array[expected], array[1], array[message_id], array[type], array[data], array[metadata],
    case when fence is not null then array[fence] end, notify, meet) a;
end
$$;

comment on function dibs.append_one(text, bigint, uuid, text, json, json, bigint, boolean, boolean) is
'Adds one message to the end of a stream: append for the arguments as arrays of one, and answers as it does. A version conflict
is of the stream; id is the message that an id conflict is with. Raises 23505 where append would find out by trying that the id
is recorded already: append tells the outcome then. For clients that validate the content of messages: it looks at names and
types, and whether data and metadata are objects that are not too large.';

grant execute on function dibs.append_one to dibs_writer, dibs_worker, dibs_operator;
