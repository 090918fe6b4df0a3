-- Names the mistake in a call of append_each.
create or replace function dibs.refuse_invalid_each(
  streams text[], expected bigint[], counts integer[], fences bigint[],
  ids uuid[], types text[], data json[], metadata json[], meets boolean[], joined boolean[]
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  writes constant integer := coalesce(cardinality(streams), 0);
  messages constant integer := coalesce(cardinality(ids), 0);
  of_writes constant text := '[1:' || writes || ']';
  of_messages constant text := '[1:' || messages || ']';
  field text;
  rule text;
begin
  if writes not between 1 and 1000 then
    field := 'streams'; rule := 'must be 1 to 1000';
  elsif messages not between 1 and 1000 then
    field := 'ids'; rule := 'must be 1 to 1000';
  elsif array_dims(streams) <> of_writes then
    field := 'streams'; rule := 'must be one list, from 1 on';
  elsif array_dims(expected) is distinct from of_writes then
    field := 'expected'; rule := 'must have one value for each write';
  elsif array_dims(counts) is distinct from of_writes then
    field := 'counts'; rule := 'must have one value for each write';
  elsif array_dims(fences) is distinct from of_writes then
    field := 'fences'; rule := 'must have one value for each write';
  elsif array_dims(ids) <> of_messages then
    field := 'ids'; rule := 'must be one list, from 1 on';
  elsif array_dims(types) is distinct from of_messages then
    field := 'types'; rule := 'must have one value for each message';
  elsif array_dims(data) is distinct from of_messages then
    field := 'data'; rule := 'must have one value for each message';
  elsif array_dims(metadata) is distinct from of_messages then
    field := 'metadata'; rule := 'must be one, or null, for each message';
  elsif meets is not null and array_dims(meets) is distinct from of_writes then
    field := 'meets'; rule := 'must have one value for each write';
  elsif joined is not null and array_dims(joined) is distinct from of_writes then
    field := 'joined'; rule := 'must have one value for each write';
  elsif joined is not null and (array_position(joined, null) is not null or joined[1]) then
    field := 'joined'; rule := 'must not be null, and must be false for the first write, which has none before it';
  elsif pg_column_size(data) + pg_column_size(metadata) > 16777216 then
    field := 'data'; rule := 'must be at most 16777216 bytes, together with the array of metadata';
  elsif exists (
    select from unnest(streams, expected, counts, fences) w (stream, expected, count, fence)
    where (w.stream <> '' and w.expected >= -2 and w.count between 1 and 1000 and w.fence >= 0) is not true
  ) then
    field := 'streams'; rule := 'must be a stream for each write, with an expected version, 1 to 1000 messages and a fence';
  elsif (select sum(c) from unnest(counts) c) <> messages then
    field := 'counts'; rule := 'must add up to the number of messages';
  else
    field := 'data'; rule := 'must be messages that can be stored';
  end if;
  raise exception 'invalid %: %', field, rule using errcode = 'DB001', column = field, hint = rule;
end
$$;

comment on function dibs.refuse_invalid_each(text[], bigint[], integer[], bigint[], uuid[], text[], json[], json[], boolean[], boolean[]) is
'Raises DB001, with the parameter as the column, for arguments that append_each has found to be wrong.';
