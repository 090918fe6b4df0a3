create or replace view message_store.settings as
select s.sql_condition, s.strict_names from dibs.settings s limit 1;

comment on view message_store.settings is 'The owner''s settings, from dibs.settings.';

grant select on message_store.settings to message_store;
