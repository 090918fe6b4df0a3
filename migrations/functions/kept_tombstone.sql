-- The position of a tombstone that stands for an erased stream, if this is where it is:
-- by it alone the other stream goes on.
create or replace function dibs.kept_tombstone(stream text) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select e.version
  from (select substring(stream from '^[^-]+-([0-9a-f]{64})$') as digest) s
  join dibs.erased_streams e on e.digest = decode(s.digest, 'hex')
  join dibs.messages m on m.stream_name = stream and m.position = e.version and m.type = 'dibs:Tombstone'
$$;
