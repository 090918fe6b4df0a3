-- Removes all of a stream, and puts a tombstone where nobody reads the name.
create or replace function dibs.erase_stream(
  stream text, least_version bigint, id uuid, data json, metadata json, out version bigint, out tombstone_stream text
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  first record;
begin
  tombstone_stream := split_part(stream, '-', 1) || '-' || encode(dibs.name_digest(stream), 'hex');
  perform dibs.remove_messages(stream, null);
  -- An older one is from before the stream was written to again. Another client's messages in a
  -- stream of this name stay, and no position is given twice.
  perform dibs.begin_again(tombstone_stream);
  version := greatest(least_version, dibs.stream_version(tombstone_stream) + 1);
  select m.position, m.type into first
  from dibs.messages m where m.stream_name = tombstone_stream order by m.position limit 1;
  if first.type = 'dibs:Tombstone' then
    perform dibs.remove_messages(tombstone_stream, first.position + 1);
  end if;
  insert into dibs.messages (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
  values (dibs.category(tombstone_stream), dibs.group_hash(tombstone_stream), dibs.correlation_category(metadata),
    tombstone_stream, version, 'dibs:Tombstone', id, data, metadata);
  insert into dibs.erased_streams as e (digest, version) values (dibs.name_digest(stream), version)
  on conflict (digest) do update set version = excluded.version, erased_at = excluded.erased_at;
  insert into dibs.fences (category, fence, erased) values (split_part(stream, '-', 1), 0, true)
  on conflict (category) do update set erased = true;
end
$$;
