-- Messages are removed here, and whole streams by dibs.remove_streams: those of a stream below a
-- position, or all. Told the first position, it does not look at the rows that were removed just
-- before, which the index has until vacuum comes.
create or replace function dibs.remove_messages(stream text, below bigint, first bigint default 0) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  removed bigint;
begin
  perform set_config('dibs.retention', 'on', true);
  delete from dibs.messages m
  where m.stream_name = stream and m.position >= first and m.position < coalesce(below, 9223372036854775807);
  get diagnostics removed = row_count;
  perform set_config('dibs.retention', 'off', true);
  if removed > 0 then
    insert into dibs.removals as r (category, removals) values (split_part(stream, '-', 1), 1)
    on conflict (category) do update set removals = r.removals + 1;
  end if;
  return removed;
end
$$;
