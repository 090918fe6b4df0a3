-- text.TypeRule of Go.
create or replace function dibs.valid_type(name text) returns boolean
language sql immutable parallel safe
return dibs.valid_text(name) and not starts_with(name, 'dibs:');

comment on function dibs.valid_type(text) is 'Whether a message may have this type. Those that begin with dibs: are the store''s own.';
