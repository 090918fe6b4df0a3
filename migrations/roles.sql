-- The roles of Dibs. Making them takes CREATEROLE. They are the server's, for all its
-- databases, so this is run once. It may be run before the migrations, or after: then dibs
-- migrate up, or select dibs.grant_rights() by the owner, gives the roles their rights.
--
-- A service gets the role that it needs, and an owner of its own is not one of them:
--
--	create role my_service login password '...' in role dibs_writer;
--	alter role my_service set idle_in_transaction_session_timeout = '1min';
create role dibs_owner nologin;
create role dibs_writer nologin;
create role dibs_reader nologin;
create role dibs_admin nologin;

-- For clients of message-db, which log in by this name. They wait for locks, and hold
-- them, no longer than this.
create role message_store login;
alter role message_store set lock_timeout = '10s';
alter role message_store set idle_in_transaction_session_timeout = '1min';

-- The migrating user has to be able to act as the owner, or owns everything:
--
--	grant dibs_owner to my_migrator;
