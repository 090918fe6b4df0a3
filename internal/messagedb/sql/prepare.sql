-- Makes dibs.messages ready to be filled: empty, closed to all but the adoption, and
-- without indexes, which are built at the end in a fraction of the time.
do $$
declare
  role text;
  i record;
begin
  if (select state from dibs_adoption.state) = 'undone' then
    -- Every message here is in message-db's table too: the undo compared the two.
    alter table dibs.messages disable trigger messages_append_only;
    truncate dibs.messages;
    alter table dibs.messages enable trigger messages_append_only;
    truncate dibs_adoption.ranges, dibs_adoption.indexes, dibs_adoption.sums, dibs_adoption.removed;
    update dibs_adoption.state
    set state = 'copying', started_at = clock_timestamp(), held = null, frontier = null, messages = null, last_position = null,
      switched_at = null, undone_at = null;
  end if;

  drop trigger if exists dibs_adoption_refuse_native on dibs.messages;
  create trigger dibs_adoption_refuse_native before insert on dibs.messages
  for each statement execute function dibs_adoption.refuse_native();
  alter table dibs.messages enable always trigger dibs_adoption_refuse_native;

  -- A reader during the copy would pass over messages that come later. The switch gives
  -- this back.
  foreach role in array array['dibs_reader', 'dibs_writer', 'dibs_worker', 'dibs_operator', 'dibs_admin'] loop
    if to_regrole(role) is not null then
      execute format('revoke usage on schema dibs from %I', role);
    end if;
  end loop;

  for i in
    select c.relname, pg_get_indexdef(x.indexrelid) as definition, k.contype, k.conname
    from pg_index x
    join pg_class c on c.oid = x.indexrelid
    left join pg_constraint k on k.conindid = x.indexrelid and k.conrelid = x.indrelid and k.contype in ('p', 'u')
    where x.indrelid = 'dibs.messages'::regclass
  loop
    insert into dibs_adoption.indexes (name, definition, contype) values (i.relname, i.definition, i.contype);
    if i.contype is not null then
      execute format('alter table dibs.messages drop constraint %I', i.conname);
    else
      execute format('drop index dibs.%I', i.relname);
    end if;
  end loop;
end
$$;
