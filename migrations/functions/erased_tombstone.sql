-- A stream that was erased and is empty answers with its tombstone, which says that
-- it was there.
create or replace function dibs.erased_tombstone(stream text)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select m.id, stream, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from dibs.erased_streams e
  join dibs.messages m
    on m.stream_name = split_part(stream, '-', 1) || '-' || encode(e.digest, 'hex') and m.position = e.version
  where e.digest = dibs.name_digest(stream)
    and not exists (select from dibs.messages o where o.stream_name = stream);
end
$$;

comment on function dibs.erased_tombstone(text) is
'The tombstone of a stream that was deleted with its name, under that name; no row for any other stream.';
