create or replace function dibs.refuse_invalid_forget(
  category text, reason text, from_position bigint, max_messages integer, dry_run boolean, id uuid
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform dibs.refuse_invalid_removal(category || '-', reason, max_messages, dry_run, id);
  if category = '' or strpos(category, '-') > 0 then
    raise exception 'invalid category: it is no category' using errcode = 'DB001', column = 'category';
  end if;
  if from_position is null or from_position < 0 then
    raise exception 'invalid from_position: it is a global position from 0' using errcode = 'DB001', column = 'from_position';
  end if;
end
$$;
