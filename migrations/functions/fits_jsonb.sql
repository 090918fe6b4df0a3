-- The view message_store.messages, and an adoption that is undone, cast every message. The cast does
-- not know U+0000, lone surrogates and numbers out of range, of which short JSON without an escaped
-- character and a large exponent has none.
create or replace function dibs.fits_jsonb(value json) returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if octet_length(value::text) > 1024 or strpos(value::text, chr(92) || 'u') > 0 or value::text collate "C" ~ '[0-9][eE][+-]?[0-9]{5}' then
    perform value::jsonb;
  end if;
  return true;
exception
  when data_exception or program_limit_exceeded then
    return false;
end
$$;

comment on function dibs.fits_jsonb(json) is 'Whether JSON, or null, can be cast to jsonb.';
