-- Every metadata that messagestore.Metadata encodes to, and every other that it reads without
-- harm: of the fields it knows, texts are bound as names are, and values of another kind, from
-- another client, are kept.
create or replace function dibs.valid_references(value json) returns boolean
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
