select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0003_validation.sql', true);

do $migration$
declare
  caller constant pg_catalog.text := pg_catalog.current_setting('role');
  path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs')
  and pg_has_role(session_user, nspowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end);
perform dibs.begin_migration('0003_validation.sql', '0002_messages.sql');

create function dibs.valid_text(value text) returns boolean
language sql immutable parallel safe
return value is not null
  and octet_length(value) between 1 and 255
  and value collate "C" !~ (
    '[\u0001-\u001F\u007F-\u009F\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u180E'
    || '\u200B-\u200F\u2028-\u202E\u2060-\u2064\u2066-\u206F\uFEFF\uFFF9-\uFFFB'
    || '\U000110BD\U000110CD\U00013430-\U0001343F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F]'
    || '|^[ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]'
    || '|[ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]$');

create function dibs.valid_stream_name(name text) returns boolean
language sql immutable parallel safe
return dibs.valid_text(name)
  and name collate "C" ~ (
    '^[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+'
    || '(:[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+(\+[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+)*)?'
    || '-[^+]+(\+[^+]+)*$');

create function dibs.valid_type(name text) returns boolean
language sql immutable parallel safe
return dibs.valid_text(name) and not starts_with(name, 'dibs:');

create function dibs.storable_json(value json) returns boolean
language plpgsql immutable
as $$
declare
  parsed jsonb;
begin
  parsed := value::jsonb;
  return not parsed @? 'strict $.**{512} ? (@.type() == "object" || @.type() == "array")';
exception
  when data_exception or program_limit_exceeded then
    return false; -- 54001, for one: nested too deep even to look at
end
$$;

create function dibs.valid_data(value json) returns boolean
language sql immutable
return case
  when value is null or json_typeof(value) <> 'object' then false
  when octet_length(value::text) <= 1024 and value::text collate "C" !~ '\\u|[0-9][eE][+-]?[0-9]{5}' then true
  else octet_length(value::text) <= 983040 and dibs.storable_json(value)
end;

create function dibs.valid_reference(value jsonb) returns boolean
language sql immutable parallel safe
return value is null or jsonb_typeof(value) <> 'string' or value = '""' or dibs.valid_text(value #>> '{}');

create function dibs.valid_references(value json) returns boolean
language plpgsql immutable
as $$
declare
  fields jsonb; -- a variable, or else it would be parsed for each look into it
begin
  if not dibs.valid_data(value) then
    return false;
  end if;
  fields := value::jsonb;
  return dibs.valid_reference(fields -> 'correlationStreamName')
    and dibs.valid_reference(fields -> 'causationMessageStreamName')
    and dibs.valid_reference(fields -> 'replyStreamName')
    and dibs.valid_reference(fields -> 'schemaVersion');
end
$$;

create function dibs.valid_metadata(value json) returns boolean
language sql immutable
return case
  when value is null then true
  when octet_length(value::text) <= 255 + length('{"schemaVersion":""}') and json_typeof(value) = 'object'
    and value::text collate "C" !~ '[^!-[\]-~]|[0-9][eE][+-]?[0-9]{5}' then true
  else dibs.valid_references(value)
end;

create function dibs.valid_content(data json, metadata json) returns boolean
language sql immutable parallel safe
return json_typeof(data) = 'object' and (metadata is null or json_typeof(metadata) = 'object')
  and octet_length(data::text) + coalesce(octet_length(metadata::text), 0) <= 983040;

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0003_validation.sql', '379a37104b5aa2df239c2b48c3e61d0e5c77da5a5713fa1791eb4e14b85dc3eb');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
