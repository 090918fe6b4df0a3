create or replace function dibs.refuse_invalid_page(from_position bigint, max_messages integer) returns void
language plpgsql immutable
as $$
begin
  if from_position is null or from_position < 0 then
    raise exception 'invalid position: must be at least 0' using errcode = 'DB001', column = 'from_position';
  end if;
  if max_messages is null or max_messages not between 1 and 10000 then
    raise exception 'invalid limit: must be between 1 and 10000' using errcode = 'DB001', column = 'max_messages';
  end if;
end
$$;

comment on function dibs.refuse_invalid_page(bigint, integer) is
'Raises DB001, with the parameter as the column, for a page that cannot be.';
