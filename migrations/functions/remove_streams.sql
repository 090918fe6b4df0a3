-- As dibs.remove_messages, for whole streams of one category.
create or replace function dibs.remove_streams(streams text[]) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  removed bigint;
begin
  perform set_config('dibs.retention', 'on', true);
  delete from dibs.messages m where m.stream_name = any (streams);
  get diagnostics removed = row_count;
  perform set_config('dibs.retention', 'off', true);
  if removed > 0 then
    insert into dibs.removals as r (category, removals) values (split_part(streams[1], '-', 1), 1)
    on conflict (category) do update set removals = r.removals + 1;
  end if;
  return removed;
end
$$;
