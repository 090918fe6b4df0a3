create or replace function dibs.valid_reference(value jsonb) returns boolean
language sql immutable parallel safe
return value is null or jsonb_typeof(value) <> 'string' or value = '""' or dibs.valid_text(value #>> '{}');

comment on function dibs.valid_reference(jsonb) is 'Whether metadata may have this where the library reads a name.';
