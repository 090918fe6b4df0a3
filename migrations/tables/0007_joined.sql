-- These functions take more than before: the writes that are all or nothing together, and the position
-- that a trim stops at. They are made again behind this file, which takes no lock on a table.
do $$
declare
  signature text;
begin
  foreach signature in array array[
    'dibs.trim(text, bigint, timestamptz, text, interval, integer, boolean, uuid)',
    'dibs.append_each(text[], bigint[], integer[], bigint[], uuid[], text[], json[], json[], boolean, boolean[])',
    'dibs.follow_each(text[], bigint[], integer[], bigint[], uuid[], bigint[], bigint[], uuid[], boolean[])',
    'dibs.refuse_invalid_each(text[], bigint[], integer[], bigint[], uuid[], text[], json[], json[], boolean[])'
  ] loop
    if to_regprocedure(signature) is not null then
      execute 'drop function ' || signature;
    end if;
  end loop;
end $$;

delete from dibs.migrations
where name in ('functions/trim.sql', 'functions/append_each.sql', 'functions/follow_each.sql', 'functions/refuse_invalid_each.sql');
