-- These functions take more, or answer with more, than before: what a write met, the time of what
-- it wrote, and the types of messages that may have come since. They are made again behind this
-- file, which takes no lock on a table.
do $$
declare
  signature text;
begin
  foreach signature in array array[
    'dibs.append(text[], bigint[], integer[], uuid[], text[], json[], json[], bigint[], boolean)',
    'dibs.append_one(text, bigint, uuid, text, json, json, bigint, boolean)',
    'dibs.append_each(text[], bigint[], integer[], bigint[], uuid[], text[], json[], json[], boolean)',
    'dibs.follow_each(text[], bigint[], integer[], bigint[], uuid[], bigint[], bigint[], uuid[])',
    'dibs.find_recorded(text[], bigint[], integer[], uuid[], text[], json[], json[])',
    'dibs.refuse_invalid(text[], bigint[], integer[], uuid[], text[], json[], json[])',
    'dibs.refuse_invalid_each(text[], bigint[], integer[], bigint[], uuid[], text[], json[], json[])'
  ] loop
    if to_regprocedure(signature) is not null then
      execute 'drop function ' || signature;
    end if;
  end loop;
end
$$;

delete from dibs.migrations
where name in ('functions/append.sql', 'functions/append_one.sql', 'functions/append_each.sql', 'functions/follow_each.sql',
  'functions/find_recorded.sql', 'functions/refuse_invalid.sql', 'functions/refuse_invalid_each.sql');
