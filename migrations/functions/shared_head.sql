-- A function by itself, as read_shared_category is.
create or replace function dibs.shared_head(category text) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  up_to constant bigint := dibs.readable(category);
begin
  return (
    select m.global_position from dibs.messages m
    where m.category = shared_head.category and m.global_position <= up_to
    order by m.global_position desc
    limit 1
  );
end
$$;

comment on function dibs.shared_head(text) is 'The global position of the last message of a category that readers may read.';
