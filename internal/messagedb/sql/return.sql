-- message-db's table becomes the store again, under its old name.
do $$
declare
  last bigint := (select coalesce(max(global_position), 0) from message_store_before_dibs.messages);
  drawn bigint := (
    select s.last_value from pg_sequences s
    where format('%I.%I', s.schemaname, s.sequencename)::regclass = pg_get_serial_sequence('message_store_before_dibs.messages', 'global_position')::regclass
  );
  own bigint := (
    select s.last_value from pg_sequences s
    where format('%I.%I', s.schemaname, s.sequencename)::regclass = pg_get_serial_sequence('dibs.messages', 'global_position')::regclass
  );
  holder text;
begin
  if greatest(last, drawn, own, 0) > 0 then
    perform setval(pg_get_serial_sequence('message_store_before_dibs.messages', 'global_position'), greatest(last, drawn, own));
  end if;

  if to_regnamespace('message_store') is not null then
    alter schema message_store rename to message_store_by_dibs;
  end if;
  alter schema message_store_before_dibs rename to message_store;
  foreach holder in array (select coalesce(grantees, '{}') from dibs_adoption.state) loop
    if holder = 'public' or to_regrole(holder) is not null then
      execute format('grant usage on schema message_store to %s', holder);
    end if;
  end loop;
end
$$;

-- The owner's part.
do $$
declare
  holder text;
begin
  drop trigger if exists dibs_adoption_note_removed on dibs.messages;
  create trigger dibs_adoption_refuse_native before insert on dibs.messages
  for each statement execute function dibs_adoption.refuse_native();
  alter table dibs.messages enable always trigger dibs_adoption_refuse_native;
  foreach holder in array array['dibs_reader', 'dibs_writer', 'dibs_worker', 'dibs_operator', 'dibs_admin'] loop
    if to_regrole(holder) is not null then
      execute format('revoke usage on schema dibs from %I', holder);
    end if;
  end loop;

  update dibs_adoption.state set state = 'undone', undone_at = clock_timestamp();
end
$$;
