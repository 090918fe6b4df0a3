-- Whether a stream may begin after position 0, as far as records tell: it was deleted, be it not
-- all of it yet, or trimmed up to there. Records of trimming are trimmed without a record, and the
-- content of deleted ones is lost.
create or replace function dibs.begins_rightly(stream text, "position" bigint) returns boolean
language sql stable
as $$
  select exists (
      select from dibs.messages m
      where m.stream_name = begins_rightly.stream and m.position >= begins_rightly.position and m.type = 'dibs:Tombstone'
    )
    or stream ~ '^[^-]*[:+]retention-'
    or exists (
      select from dibs.messages m
      where m.stream_name = dibs.retention_stream(begins_rightly.stream) and m.type = 'dibs:Tombstone'
    )
    or exists (
      select from dibs.erased_streams e where e.digest = dibs.name_digest(dibs.retention_stream(begins_rightly.stream))
    )
    or exists (
      select from dibs.messages m
      cross join lateral (select case when dibs.storable_json(m.data) then m.data end as data) d
      where m.stream_name = dibs.retention_stream(begins_rightly.stream) and m.type = 'dibs:Trimmed'
        and d.data ->> 'stream' = begins_rightly.stream and d.data ->> 'upTo' = (begins_rightly.position - 1)::text
    )
$$;
