select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0008_rights.sql', true);

do $migration$
declare
  caller constant pg_catalog.text := pg_catalog.current_setting('role');
  path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs')
  and pg_has_role(session_user, nspowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end);
perform dibs.begin_migration('0008_rights.sql', '0007_report.sql');

create function dibs.schema_version(out version integer, out serves integer)
language sql immutable parallel safe
return (8, 8);

create function dibs.grant_rights() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  roles constant text[] := array['dibs_reader', 'dibs_writer', 'dibs_admin'];
  role text;
  granted record;
begin
  foreach role in array roles loop
    continue when to_regrole(role) is null;
    execute format('grant usage on schema dibs to %I', role);
    execute format('grant select on dibs.stored_messages, dibs.erased to %I', role);
  end loop;

  for granted in
    select f.name, r.role
    from (values
      ('dibs.append(text[], bigint[], integer[], uuid[], text[], json[], json[], bigint[], boolean)', array['dibs_writer']),
      ('dibs.append_one(text, bigint, uuid, text, json, json, bigint, boolean)', array['dibs_writer']),
      ('dibs.append_each(text[], bigint[], integer[], bigint[], uuid[], text[], json[], json[], boolean)', array['dibs_writer']),
      ('dibs.find_messages(text, uuid[])', array['dibs_writer']),
      ('dibs.erased_tombstone(text)', roles),
      ('dibs.read_stream(text, bigint, integer, boolean)', roles),
      ('dibs.read_category(text, bigint, integer, text[], text, integer, integer)', roles),
      ('dibs.last_message(text, text)', roles),
      ('dibs.stream_version(text)', roles),
      ('dibs.heads(text[])', roles),
      ('dibs.listen()', roles),
      ('dibs.epoch()', roles),
      ('dibs.report(text[], text, text, text, bigint)', roles),
      ('dibs.categories(text)', roles),
      ('dibs.count_category(text, bigint, bigint, text[], text, integer, integer)', roles),
      ('dibs.verify_table(text[], integer)', array['dibs_admin']),
      ('dibs.verify_store(bigint, integer)', array['dibs_admin']),
      ('dibs.verify_category(text, bigint, integer)', array['dibs_admin']),
      ('dibs.trim(text, bigint, timestamptz, text, interval, integer, boolean, uuid)', array['dibs_admin']),
      ('dibs.delete_stream(text, bigint, boolean, text, integer, boolean, uuid)', array['dibs_admin']),
      ('dibs.category_streams(text, text, integer)', array['dibs_admin']),
      ('dibs.raise_epoch(uuid)', array['dibs_admin']),
      ('dibs.schema_version()', roles)
    ) f (name, roles)
    cross join unnest(f.roles) r (role)
    where to_regrole(r.role) is not null
  loop
    execute format('grant execute on function %s to %I', granted.name, granted.role);
  end loop;

  for granted in
    select t.oid::regtype as name
    from pg_type t
    where t.typnamespace = 'dibs'::regnamespace and t.typtype in ('c', 'd', 'e', 'r')
  loop
    execute format('revoke all on type %s from public', granted.name);
  end loop;

  if to_regclass('dibs.settings') is not null and to_regrole('message_store') is not null then
    grant usage on schema message_store to message_store;
    grant insert on message_store.messages to message_store;
    grant select on message_store.messages, message_store.stored_messages, message_store.settings,
      message_store.stream_summary, message_store.type_summary, message_store.stream_type_summary,
      message_store.type_stream_summary, message_store.category_type_summary, message_store.type_category_summary
    to message_store;
    grant execute on function message_store.write_message, message_store.acquire_lock, message_store.stream_version,
      message_store.get_stream_messages, message_store.get_category_messages, message_store.get_last_stream_message,
      message_store.category, message_store.is_category, message_store.id, message_store.cardinal_id,
      message_store.hash_64, message_store.message_store_version
    to message_store;
  end if;
end
$$;

perform dibs.revoke_defaults('dibs');

perform dibs.grant_rights();

insert into dibs.migrations (name, sha256)
values ('0008_rights.sql', '300e7df5268336f2410a07d56a0b8153fdb1ee5ce19e0323e656aa32ec8c5d73');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
