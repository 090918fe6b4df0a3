-- A transaction at REPEATABLE READ or above does not see the commits after it began, but a unique
-- index does. So it finds out by trying: it adds a message that would be in the way, and takes it
-- back.
create or replace function dibs.taken(stream text, version bigint, id uuid) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  violated text;
begin
  insert into dibs.messages (category, group_hash, stream_name, position, type, id)
  values (dibs.category(stream), 0, stream, version, 'probe', id);
  raise exception using errcode = 'DB000';
exception
  when sqlstate 'DB000' then
    return false;
  when unique_violation then
    get stacked diagnostics violated = constraint_name;
    if regexp_replace(violated, '_cc(new|old)[0-9]*$', '') not in ('messages_id', 'messages_stream') then
      raise; -- as in append
    end if;
    return true;
end
$$;

comment on function dibs.taken(text, bigint, uuid) is
'Whether a message has this position or this id, also one that the transaction is too old to see.';
