create or replace function dibs.retention_stream(stream text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  category constant text := split_part(stream, '-', 1);
  records constant text := category || case when strpos(category, ':') > 0 then '+' else ':' end || 'retention';
  name text;
begin
  if category ~ '[:+]retention$' then
    return null;
  end if;
  name := records || substr(stream, length(category) + 1);
  if octet_length(name) > 255 or strpos(name, '-') = 0 then
    name := records || '-' || encode(dibs.name_digest(stream), 'hex');
  end if;
  return name;
end
$$;

comment on function dibs.retention_stream(text) is
'Where it is recorded that a stream was trimmed: account:retention-123 for account-123. Null for a stream of such records.';
