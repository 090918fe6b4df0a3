-- Each function that adds to an empty stream calls this first, under the category's lock.
create or replace function dibs.begin_again(stream text) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  sought constant bytea := dibs.name_digest(stream);
  version bigint;
begin
  select e.version into version from dibs.erased_streams e where e.digest = sought;
  if not found or exists (select from dibs.messages m where m.stream_name = stream) then
    return null;
  end if;
  -- The other one stays where it is, for the readers that are behind it. Were it gone,
  -- the stream would go on from here all the same.
  insert into dibs.messages (category, group_hash, correlation_category, stream_name, position, type, id, data, metadata)
  select dibs.category(stream), dibs.group_hash(stream), dibs.correlation_category(t.metadata),
    stream, version, 'dibs:Tombstone', gen_random_uuid(), coalesce(t.data, '{"nameErased":true}'), t.metadata
  from (select) s
  left join dibs.messages t
    on t.stream_name = split_part(stream, '-', 1) || '-' || encode(sought, 'hex') and t.position = version;
  delete from dibs.erased_streams e where e.digest = sought;
  return version;
end
$$;

comment on function dibs.begin_again(text) is
'Puts the tombstone of a stream that was erased, and is empty still, back under its name, and returns the version; null
for any other stream.';
