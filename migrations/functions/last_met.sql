-- What a write meets. Data and metadata that are too large to be sent along with the answers to
-- other writes are null: a client that wants them reads the message. A message without data is
-- taken for such a one. Compressed, a large message may be small. Without settings of its own, so
-- that it becomes part of the statement.
create or replace function dibs.last_met(stream text)
returns table ("position" bigint, global_position bigint, id uuid, "time" timestamptz, type text, data json, metadata json)
language sql stable
as $$
  select m.position, m.global_position, m.id, m.time, m.type,
    case when s.small then m.data end, case when s.small then m.metadata end
  from dibs.messages m
  cross join lateral (
    select case when pg_column_size(m.data) + coalesce(pg_column_size(m.metadata), 0) <= 16384
      then octet_length(m.data::text) + coalesce(octet_length(m.metadata::text), 0) <= 16384
      else false end as small
  ) s
  where m.stream_name = stream
  order by m.position desc
  limit 1
$$;

comment on function dibs.last_met(text) is
'The last message of a stream, with data and metadata if both together have at most 16 KiB; else both are null. No row for a
stream without messages, also for one that was erased.';
