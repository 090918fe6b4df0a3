create or replace function dibs.last_message(stream text, message_type text default null)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return query
  select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from dibs.messages m
  where m.stream_name = stream and (message_type is null or m.type = message_type)
  order by m.position desc
  limit 1;
  if not found then
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream)) then
      return query select t.* from dibs.erased_tombstone(stream) t where message_type is null or t.type = message_type;
    end if;
  end if;
end
$$;

comment on function dibs.last_message(text, text) is 'The last message of a stream, or the last of a type; no row if there is none.';

grant execute on function dibs.last_message to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
