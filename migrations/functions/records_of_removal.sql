-- Whether a stream has the records of trims, or of forgotten keys: they are all that is left of what was removed. The category
-- tells it first, so that other streams are not read; a stream of a user's in such a category has no message of these types,
-- which nobody else can write.
create or replace function dibs.records_of_removal(stream text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return split_part(stream, '-', 1) ~ '[:+](retention|forgotten)$'
    and exists (select from dibs.messages m where m.stream_name = stream and m.type in ('dibs:Trimmed', 'dibs:Forgotten'));
end
$$;
