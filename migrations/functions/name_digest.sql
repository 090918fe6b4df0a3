-- Stable, as convert_to is: an immutable function of it would be called, at the price of
-- an empty read, where this one becomes part of the statement.
create or replace function dibs.name_digest(stream text) returns bytea
language sql stable parallel safe
return sha256(convert_to(stream, 'UTF8'));

comment on function dibs.name_digest(text) is 'The name of a stream in dibs.erased_streams.';
