create or replace function dibs.read_stream(stream text, from_position bigint default 0, max_messages integer default 1000, backwards boolean default false)
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
  if (from_position >= 0 and max_messages between 1 and 10000) is not true then
    perform dibs.refuse_invalid_page(from_position, max_messages);
  end if;
  if backwards then
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from dibs.messages m
    where m.stream_name = stream and m.position <= from_position
    order by m.position desc
    limit max_messages;
  else
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from dibs.messages m
    where m.stream_name = stream and m.position >= from_position
    order by m.position
    limit max_messages;
  end if;
  if not found then
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream)) then
      return query
      select t.* from dibs.erased_tombstone(stream) t
      where case when backwards then t.position <= from_position else t.position >= from_position end;
    end if;
  end if;
end
$$;

comment on function dibs.read_stream(text, bigint, integer, boolean) is
'Messages of one stream from a position on, that one included, upwards or backwards: at most max_messages, which is 1 to 10000.
One that was trimmed or deleted begins above 0; one that was deleted with its name is its tombstone.';

grant execute on function dibs.read_stream to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
