-- messagestore.validateJSON. JSON that has no escaped character and no large
-- exponent, in 1024 bytes, has nothing in it that storable_json could refuse.
create or replace function dibs.valid_data(value json) returns boolean
language sql immutable
return case
  when value is null or json_typeof(value) <> 'object' then false
  when octet_length(value::text) <= 1024 and value::text collate "C" !~ '\\u|[0-9][eE][+-]?[0-9]{5}' then true
  else octet_length(value::text) <= 983040 and dibs.storable_json(value)
end;

comment on function dibs.valid_data(json) is 'Whether a message may have this data: an object of at most 960 KiB that jsonb can hold, nested at most 512 deep.';
