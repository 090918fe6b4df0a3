create or replace function dibs.stream_version(stream text) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  return coalesce(
    (select m.position from dibs.messages m where m.stream_name = stream order by m.position desc limit 1),
    (select e.version from dibs.erased_streams e where e.digest = dibs.name_digest(stream)),
    -1
  );
end
$$;

comment on function dibs.stream_version(text) is 'The position of the last message of a stream, -1 for no stream. A stream that was deleted is at its tombstone.';

grant execute on function dibs.stream_version to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
