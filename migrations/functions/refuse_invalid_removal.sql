create or replace function dibs.refuse_invalid_removal(stream text, reason text, max_messages integer, dry_run boolean, id uuid) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  field text;
  rule text;
begin
  if stream is null or stream = '' or stream like '-%' then
    field := 'stream'; rule := 'must be a stream name';
  elsif reason is not null and not dibs.valid_text(reason) then
    field := 'reason'; rule := 'must be 1 to 255 bytes of visible text, without white space at either end';
  elsif max_messages is null or max_messages not between 1 and 100000 then
    field := 'max_messages'; rule := 'must be between 1 and 100000';
  elsif dry_run is null then
    field := 'dry_run'; rule := 'must be true or false';
  elsif id = '00000000-0000-0000-0000-000000000000' then
    field := 'id'; rule := 'must be a message id';
  end if;
  if field is not null then
    raise exception 'invalid %: %', field, rule using errcode = 'DB001', column = field, hint = rule;
  end if;
end
$$;
