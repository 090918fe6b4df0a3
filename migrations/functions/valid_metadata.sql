-- Metadata of visible ASCII without a backslash has nothing in it that the other would
-- refuse, if it is so short that no name in it can be too long.
create or replace function dibs.valid_metadata(value json) returns boolean
language sql immutable
return case
  when value is null then true
  when octet_length(value::text) <= 255 + length('{"schemaVersion":""}') and json_typeof(value) = 'object'
    and value::text collate "C" !~ '[^!-[\]-~]|[0-9][eE][+-]?[0-9]{5}' then true
  else dibs.valid_references(value)
end;

comment on function dibs.valid_metadata(json) is
'Whether a message may have this metadata: none, or an object as valid_data has it, in which stream names are texts that names may be.';
