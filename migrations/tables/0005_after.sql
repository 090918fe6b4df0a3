-- These functions take more than before: the id of the message at the expected version. They are
-- made again behind this file, which takes no lock on a table. A new database does not have them
-- yet, and a statement of "if exists" would warn there.
do $$
declare
  signature text;
begin
  foreach signature in array array[
    'dibs.append(text[], bigint[], integer[], uuid[], text[], json[], json[], bigint[], boolean, boolean, jsonb)',
    'dibs.refuse_invalid(text[], bigint[], integer[], uuid[], text[], json[], json[], jsonb)'
  ] loop
    if to_regprocedure(signature) is not null then
      execute 'drop function ' || signature;
    end if;
  end loop;
end $$;

delete from dibs.migrations where name in ('functions/append.sql', 'functions/refuse_invalid.sql');
