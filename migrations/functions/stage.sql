-- A message that an open transaction has appended holds back what others append behind it in its
-- category, until it ends. One that is staged holds back nothing: it is appended in COMMIT.
create or replace function dibs.stage(
  stream text, expected bigint, message_id uuid, type text, data json, metadata json default null
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform dibs.refuse_invalid(array[stream], array[expected], array[1], array[message_id], array[type], array[data], array[metadata]);
  if expected < -2 then
    raise exception 'invalid expected: must be a version for a staged message, -1 for no stream, or -2 for any'
      using errcode = 'DB001', column = 'expected';
  end if;
  if current_setting('session_replication_role') = 'replica' then
    raise exception 'no message can be staged while session_replication_role is replica, because COMMIT would not append it'
      using errcode = 'DB001', column = 'stream';
  end if;
  perform set_config('dibs.staged', 'true', true); -- what appends asks this, since the table costs more
  insert into dibs.staged (xact, stream, expected, id, type, data, metadata)
  values (pg_current_xact_id(), stage.stream, stage.expected, message_id, stage.type, stage.data, stage.metadata);
end
$$;

comment on function dibs.stage(text, bigint, uuid, text, json, json) is
'Adds a message to the end of a stream in the last step of the transaction, so that nothing waits for it before. A message that is
recorded already with its id and content is left out, as is a first message of a stream that has begun with its type and
data. Raises DB001 for an argument that may not be written. COMMIT raises DB003 where the stream is at another version, and what
append raises. Messages of a stream come in the order of the calls.';

grant execute on function dibs.stage to dibs_writer, dibs_worker, dibs_operator;
