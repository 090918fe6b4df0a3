-- The columns that follow from a row's name and metadata.
create or replace function dibs.derived(stream_name text, metadata json, out category text, out group_hash bigint, out correlation_category text)
language sql immutable parallel safe
as $$
  select dibs.category(stream_name), dibs.group_hash(stream_name), dibs.correlation_category(metadata)
$$;
