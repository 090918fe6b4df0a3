-- This holds for roles with rights on the table too. The functions that trim and delete set
-- dibs.retention for themselves. Any role can set that, so it counts only for a role that may act
-- as the owner, as those functions do.
create or replace function dibs.refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'DELETE' and current_setting('dibs.retention', true) = 'on'
    and pg_has_role(current_user, (select c.relowner from pg_class c where c.oid = tg_relid), 'member')
  then
    return null;
  end if;
  raise exception 'messages are only ever added: % of dibs.messages is refused', lower(tg_op)
    using errcode = 'insufficient_privilege', hint = 'To remove messages, call dibs.trim or dibs.delete_stream.';
end
$$;

create or replace trigger messages_append_only before update or delete or truncate on dibs.messages
for each statement execute function dibs.refuse_change();
