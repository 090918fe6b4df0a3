-- The old table becomes the past, under its new name.
do $$
declare
  last bigint := (select coalesce(max(global_position), 0) from message_store.messages);
  drawn bigint := (
    select s.last_value from pg_sequences s
    where format('%I.%I', s.schemaname, s.sequencename)::regclass = pg_get_serial_sequence('message_store.messages', 'global_position')::regclass
  );
  own bigint := (
    select s.last_value from pg_sequences s
    where format('%I.%I', s.schemaname, s.sequencename)::regclass = pg_get_serial_sequence('dibs.messages', 'global_position')::regclass
  );
  holders text[];
  holder text;
begin
  -- Never back, also for numbers that were drawn and not used.
  if greatest(last, drawn, own, 0) > 0 then
    perform setval(pg_get_serial_sequence('dibs.messages', 'global_position'), greatest(last, drawn, own));
  end if;

  drop trigger dibs_adoption_refuse_numbered on message_store.messages;
  drop trigger dibs_adoption_refuse_change on message_store.messages;
  create trigger dibs_adoption_refuse before insert or update or delete or truncate on message_store.messages
  for each statement execute function dibs_adoption.refuse_old('its messages were adopted, and are written to dibs now');
  alter table message_store.messages enable always trigger dibs_adoption_refuse;

  -- Also the roles beside message_store.
  select coalesce(array_agg(distinct case when a.grantee = 0 then 'public' else format('%I', pg_get_userbyid(a.grantee)) end), '{}')
  into holders
  from pg_namespace n
  cross join aclexplode(n.nspacl) a
  where n.nspname = 'message_store' and a.privilege_type = 'USAGE' and a.grantee <> n.nspowner;
  foreach holder in array holders loop
    execute format('revoke usage on schema message_store from %s cascade', holder);
  end loop;

  alter schema message_store rename to message_store_before_dibs;

  update dibs_adoption.state
  set state = 'adopted', grantees = holders, last_position = last, switched_at = clock_timestamp();
end
$$;
