-- The roles of Dibs. Making them takes CREATEROLE. They are the server's, for all its
-- databases. This may be run before the migrations, or after: then dibs migrate up, or select
-- dibs.grant_rights() by the owner, gives the roles their rights. It may be run again: a role
-- that is there already stays as it is.
--
-- A service gets the role that it needs, dibs_worker if it works on queues, sagas or relays and
-- dibs_writer if not:
--
--	create role my_service login password '...' in role dibs_worker;
--	alter role my_service set idle_in_transaction_session_timeout = '15s';
--
-- The migrating user has to be able to act as the owner, or owns everything:
--
--	grant dibs_owner to my_migrator;
do $roles$
begin
  if to_regrole('dibs_owner') is null then create role dibs_owner nologin; end if;
  if to_regrole('dibs_reader') is null then create role dibs_reader nologin; end if;
  if to_regrole('dibs_writer') is null then create role dibs_writer nologin; end if;
  if to_regrole('dibs_worker') is null then create role dibs_worker nologin; end if;
  if to_regrole('dibs_operator') is null then create role dibs_operator nologin; end if;
  if to_regrole('dibs_admin') is null then create role dibs_admin nologin; end if;

  -- For clients of message-db, which log in by this name. They wait for locks, and hold
  -- them, no longer than this.
  if to_regrole('message_store') is null then
    create role message_store login;
    alter role message_store set lock_timeout = '10s';
    alter role message_store set idle_in_transaction_session_timeout = '1min';
  end if;
end
$roles$;
