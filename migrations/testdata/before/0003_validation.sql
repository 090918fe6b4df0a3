-- +goose Up
-- +goose StatementBegin
-- What may be stored. Each of these accepts exactly what the Go function beside
-- its name accepts; a fuzz test holds the two together.
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

-- messagestore.textRule: 1 to 255 bytes, none of Unicode 15's Cc, Cf, Zl and Zp,
-- no White_Space at either end.
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

comment on function dibs.valid_text(text) is 'Whether a name may be this text: 1 to 255 bytes, all visible, no white space at either end.';

-- messagestore.StreamName.Validate.
create function dibs.valid_stream_name(name text) returns boolean
language sql immutable parallel safe
return dibs.valid_text(name)
  and name collate "C" ~ (
    '^[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+'
    || '(:[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+(\+[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+)*)?'
    || '-[^+]+(\+[^+]+)*$');

comment on function dibs.valid_stream_name(text) is 'Whether a stream may have this name: category[:type[+type]]-id[+id], no part of it empty.';

-- messagestore.ValidateType.
create function dibs.valid_type(name text) returns boolean
language sql immutable parallel safe
return dibs.valid_text(name) and not starts_with(name, 'dibs:');

comment on function dibs.valid_type(text) is 'Whether a message may have this type. Those that begin with dibs: are the store''s own.';

-- What validateJSON refuses of what is valid JSON already. The cast to jsonb does
-- not know U+0000, lone surrogates and numbers out of range.
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

comment on function dibs.storable_json(json) is 'Whether JSON can be cast to jsonb and is nested at most 512 deep.';

-- messagestore.validateJSON. JSON that has no escaped character and no large
-- exponent, in 1024 bytes, has nothing in it that storable_json could refuse.
create function dibs.valid_data(value json) returns boolean
language sql immutable
return case
  when value is null or json_typeof(value) <> 'object' then false
  when octet_length(value::text) <= 1024 and value::text collate "C" !~ '\\u|[0-9][eE][+-]?[0-9]{5}' then true
  else octet_length(value::text) <= 983040 and dibs.storable_json(value)
end;

comment on function dibs.valid_data(json) is 'Whether a message may have this data: an object of at most 960 KiB that jsonb can hold, nested at most 512 deep.';

create function dibs.valid_reference(value jsonb) returns boolean
language sql immutable parallel safe
return value is null or jsonb_typeof(value) <> 'string' or value = '""' or dibs.valid_text(value #>> '{}');

comment on function dibs.valid_reference(jsonb) is 'Whether metadata may have this where the library reads a name.';

-- Every metadata that messagestore.Metadata encodes to, and every other that it
-- reads without harm: of the fields it knows, texts are bound as names are, and
-- what another client made of them is kept.
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

-- Metadata of visible ASCII without a backslash has nothing in it that the other would
-- refuse, if it is so short that no name in it can be too long.
create function dibs.valid_metadata(value json) returns boolean
language sql immutable
return case
  when value is null then true
  when octet_length(value::text) <= 255 + length('{"schemaVersion":""}') and json_typeof(value) = 'object'
    and value::text collate "C" !~ '[^!-[\]-~]|[0-9][eE][+-]?[0-9]{5}' then true
  else dibs.valid_references(value)
end;

comment on function dibs.valid_metadata(json) is
'Whether a message may have this metadata: none, or an object as valid_data has it, in which stream names are texts that names may be.';

-- What is left to look at where the library has validated the rest: it takes a tenth of
-- the time.
create function dibs.valid_content(data json, metadata json) returns boolean
language sql immutable parallel safe
return json_typeof(data) = 'object' and (metadata is null or json_typeof(metadata) = 'object')
  and octet_length(data::text) + coalesce(octet_length(metadata::text), 0) <= 983040;

comment on function dibs.valid_content(json, json) is
'Whether data is an object, metadata is one or null, and together they are at most 960 KiB.';

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0003_validation.sql', '379a37104b5aa2df239c2b48c3e61d0e5c77da5a5713fa1791eb4e14b85dc3eb');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
-- +goose StatementEnd
