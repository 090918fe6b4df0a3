-- The part of messagestore.validateJSON that is left for valid JSON. The cast to jsonb does not
-- know U+0000, lone surrogates and numbers out of range.
create or replace function dibs.storable_json(value json) returns boolean
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
