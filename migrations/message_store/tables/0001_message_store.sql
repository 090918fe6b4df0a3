-- The schema that clients of message-db know: message_store, over the same rows and under the
-- same locks as the schema dibs. Names, parameters, defaults, texts and the
-- order of checks are those of message-db 1.3.0, with these exceptions.
--
-- No name is looked up in the caller's search_path. A condition is taken only if the
-- owner has opened that, and only if it is one expression. Rows that are inserted into the view
-- go through write_message. Types that begin with dibs: are refused.
--
-- A read over all streams at once, such as "select * from messages where
-- global_position > 5 order by global_position limit 9", reads the whole table: no
-- index is in that order, since each write would pay for it. For clients that read so,
-- add one:
--
--	create index concurrently messages_global_position on dibs.messages (global_position);

-- The migrating user makes the role and the schema, and not the owner of the schema dibs.
-- A role that is there already keeps its settings.
do $message_store$
declare
  owner constant text := current_user;
begin
  perform set_config('role', current_setting('dibs.caller_role'), true);
  if to_regrole('message_store') is null then
    begin
      create role message_store login;
      alter role message_store set lock_timeout = '10s';
      alter role message_store set idle_in_transaction_session_timeout = '1min';
    exception
      when duplicate_object or unique_violation then
        null; -- made just now, for another database
      when insufficient_privilege then
        raise notice 'role message_store does not exist and % may not create it', current_user;
    end;
  end if;
  if to_regnamespace('message_store') is null then
    execute format('create schema message_store authorization %I', owner);
  elsif exists (
    select from pg_depend
    where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace('message_store') and classid <> 'pg_default_acl'::regclass
  ) then
    raise exception 'the schema message_store is there already, and is not empty'
      using errcode = 'duplicate_schema', hint = 'Find out which application it belongs to, and rename or drop it.';
  elsif not has_schema_privilege(owner, 'message_store', 'create') or (select rolsuper from pg_roles where rolname = session_user) then
    execute format('alter schema message_store owner to %I', owner);
  end if;
  perform set_config('role', owner, true);
end
$message_store$;

grant usage on schema message_store to message_store;

create table dibs.settings (
  sql_condition boolean not null default false,
  strict_names boolean not null default false
);

create unique index settings_one_row on dibs.settings ((true));

insert into dibs.settings default values;

comment on table dibs.settings is
'One row, which the owner may update. With sql_condition, the functions of message_store take a condition, which runs with
the rights of their caller; a session that sets message_store.sql_condition to anything but on is refused one all the same. With
strict_names, they refuse names, types and data that dibs.append would refuse.';

create type message_store.message as (
  id varchar,
  stream_name varchar,
  type varchar,
  position bigint,
  global_position bigint,
  data varchar,
  metadata varchar,
  time timestamp
);

