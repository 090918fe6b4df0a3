-- A category that was written to in callers' transactions that overlap: positions do not become
-- visible in order there, and a reader stops below those that may still come.
alter table dibs.fences add column shared boolean not null default false;

comment on table dibs.fences is
'How often find_messages did not find something in a category, whether a stream of it was ever erased, and whether writers
share its lock; no row for never.';

-- These functions take more than before: whether a write shares the lock, and where a reader stops.
-- They are made again behind this file.
do $$
declare
  signature text;
begin
  foreach signature in array array[
    'dibs.append(text[], bigint[], integer[], uuid[], text[], json[], json[], bigint[], boolean, boolean, jsonb, uuid[])',
    'dibs.read_category(text, bigint, integer, text[], text, integer, integer)'
  ] loop
    if to_regprocedure(signature) is not null then
      execute 'drop function ' || signature;
    end if;
  end loop;
end $$;

delete from dibs.migrations where name in ('functions/append.sql', 'functions/read_category.sql');
