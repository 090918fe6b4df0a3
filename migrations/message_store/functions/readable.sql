create or replace function message_store.readable(category varchar) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return dibs.readable(category);
end
$$;

comment on function message_store.readable(varchar) is
'The global position up to which a later statement sees all messages of a category that there will ever be: dibs.readable.';

grant execute on function message_store.readable to message_store;
