-- As if the adoption had not begun. The indexes are built on an empty table.
do $$
begin
  drop trigger if exists dibs_adoption_refuse_numbered on message_store.messages;
  drop trigger if exists dibs_adoption_refuse_change on message_store.messages;
end
$$;

-- The owner's part.
do $$
declare
  i record;
begin
  drop trigger if exists dibs_adoption_refuse_native on dibs.messages;
  alter table dibs.messages disable trigger messages_append_only;
  truncate dibs.messages;
  alter table dibs.messages enable trigger messages_append_only;
  for i in select * from dibs_adoption.indexes order by name loop
    if to_regclass(format('dibs.%I', i.name)) is null then
      execute i.definition;
    end if;
    if i.contype is not null and not exists (select from pg_constraint where conrelid = 'dibs.messages'::regclass and conname = i.name) then
      execute format('alter table dibs.messages add constraint %I %s using index %1$I', i.name, case i.contype when 'p' then 'primary key' else 'unique' end);
    end if;
  end loop;
  perform dibs.grant_rights();
end
$$;
drop schema dibs_adoption cascade;
