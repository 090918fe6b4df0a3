-- +goose Up
-- +goose StatementBegin
-- How messages are read. Readers take no lock. A plan is made once for a session:
-- made for each call it would cost more than an empty page does. One that was made
-- for an empty table is kept when the table grows, so it has to use the index.
select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '0005_read.sql', true);

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
perform dibs.begin_migration('0005_read.sql', '0004_append.sql');

create view dibs.stored_messages as
select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time, m.category
from dibs.messages m;

comment on view dibs.stored_messages is
'All messages, for who may read. Clients of one''s own call read_stream and read_category instead, whose plans are good
whatever the size of the table, and which know of streams that were erased.';

create function dibs.refuse_invalid_page(from_position bigint, max_messages integer) returns void
language plpgsql immutable
as $$
begin
  if from_position is null or from_position < 0 then
    raise exception 'invalid position: it is at least 0' using errcode = 'DB001', column = 'from_position';
  end if;
  if max_messages is null or max_messages not between 1 and 10000 then
    raise exception 'invalid limit: it is between 1 and 10000' using errcode = 'DB001', column = 'max_messages';
  end if;
end
$$;

comment on function dibs.refuse_invalid_page(bigint, integer) is
'Raises DB001, with the parameter as the column, for a page that cannot be.';

-- A stream that was erased and is empty answers with its tombstone, which says that
-- it was there.
create function dibs.erased_tombstone(stream text)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select m.id, stream, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from dibs.erased_streams e
  join dibs.messages m
    on m.stream_name = split_part(stream, '-', 1) || '-' || encode(e.digest, 'hex') and m.position = e.version
  where e.digest = dibs.name_digest(stream)
    and not exists (select from dibs.messages o where o.stream_name = stream);
end
$$;

comment on function dibs.erased_tombstone(text) is
'The tombstone of a stream that was deleted with its name, under that name; no row for any other stream.';

create view dibs.erased as
select exists (select from dibs.erased_streams) as any_stream;

comment on view dibs.erased is 'Whether any stream was deleted with its name: where none was, no reader has to look for its tombstone.';

create function dibs.read_stream(stream text, from_position bigint default 0, max_messages integer default 1000, backwards boolean default false)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  if (from_position >= 0 and max_messages between 1 and 10000) is not true then
    perform dibs.refuse_invalid_page(from_position, max_messages);
  end if;
  if backwards then
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from dibs.messages m
    where m.stream_name = stream and m.position <= from_position
    order by m.position desc
    limit max_messages;
  else
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from dibs.messages m
    where m.stream_name = stream and m.position >= from_position
    order by m.position
    limit max_messages;
  end if;
  if not found then
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream)) then
      return query
      select t.* from dibs.erased_tombstone(stream) t
      where case when backwards then t.position <= from_position else t.position >= from_position end;
    end if;
  end if;
end
$$;

comment on function dibs.read_stream(text, bigint, integer, boolean) is
'Messages of one stream from a position on, that one included, upwards or backwards: at most max_messages, which is 1 to 10000.
One that was trimmed or deleted begins above 0; one that was deleted with its name is its tombstone.';

create function dibs.read_category(
  category text, from_position bigint default 0, max_messages integer default 1000,
  types text[] default null, correlation text default null, group_size integer default null, group_member integer default null
)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz,
  more boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  found_messages integer := 0;
  last bigint;
  newest bigint;
  first_mark json;
begin
  -- What is asked for most, by one expression: each costs as much as a message does.
  if types is null and correlation is null and group_size is null and group_member is null
    and from_position >= 0 and max_messages between 1 and 10000
  then
    return query
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time, null::boolean
    from dibs.messages m
    where m.category = read_category.category and m.global_position >= from_position
    order by m.global_position
    limit max_messages;
    get diagnostics found_messages = row_count;
    if found_messages = 0 then
      global_position := from_position;
      more := false;
    else
      -- The last of them, and the one after it: the index alone tells.
      select least(min(p.global_position), 9223372036854775806) + 1, count(*) > 1 into global_position, more
      from (
        select w.global_position
        from dibs.messages w
        where w.category = read_category.category and w.global_position >= from_position
        order by w.global_position
        offset found_messages - 1
        limit 2
      ) p;
    end if;
    return next;
    return;
  end if;

  if (from_position >= 0 and max_messages between 1 and 10000) is not true then
    perform dibs.refuse_invalid_page(from_position, max_messages);
  end if;
  if group_size not between 1 and 1024 or (group_size is null) <> (group_member is null) or group_member < 0 or group_member >= group_size then
    raise exception 'invalid group: the size is 1 to 1024, and the member from 0 and less than the size'
      using errcode = 'DB001', column = 'group_member';
  end if;

  -- At most 10000 messages are looked at, however few of them are wanted.
  for id, stream_name, type, position, global_position, data, metadata, time in
    select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
    from (
      select * from dibs.messages w
      where w.category = read_category.category and w.global_position >= from_position
      order by w.global_position
      limit 10000
    ) m
    where (group_size is null or abs(m.group_hash % group_size) = group_member)
      and (coalesce(cardinality(types), 0) = 0 or m.type = any (types))
      and (correlation is null or m.correlation_category = correlation)
    order by m.global_position
    limit max_messages
  loop
    return next;
    found_messages := found_messages + 1;
  end loop;

  if found_messages = max_messages then
    last := global_position;
    more := exists (
      select from dibs.messages w where w.category = read_category.category and w.global_position > last
    );
  else
    -- It has looked at 10000, or at all there are, of which no two have one position.
    select w.global_position into newest
    from dibs.messages w
    where w.category = read_category.category and w.global_position >= from_position
    order by w.global_position desc
    limit 1;
    last := newest;
    if newest - from_position >= 10000 then
      select w.global_position into last
      from dibs.messages w
      where w.category = read_category.category and w.global_position >= from_position
      order by w.global_position
      offset 9999
      limit 1;
      last := coalesce(last, newest);
    end if;
    more := coalesce(last < newest, false);
  end if;

  if found_messages > 0 then
    id := null; stream_name := null; type := null; position := null; metadata := null; time := null;
  end if;
  if last is not null then
    select w.global_position, json_build_object(
      'id', w.id, 'stream', w.stream_name, 'position', w.position, 'globalPosition', w.global_position,
      'time', case when isfinite(w.time) then (extract(epoch from w.time) * 1000000)::bigint end
    ) into newest, first_mark
    from dibs.messages w
    where w.category = read_category.category and w.global_position >= from_position
    order by w.global_position
    limit 1;
    if newest = last then
      data := json_build_array(first_mark);
    else
      select json_build_array(first_mark, json_build_object(
        'id', w.id, 'stream', w.stream_name, 'position', w.position, 'globalPosition', w.global_position,
        'time', case when isfinite(w.time) then (extract(epoch from w.time) * 1000000)::bigint end
      )) into data
      from dibs.messages w
      where w.category = read_category.category and w.global_position >= last
      order by w.global_position
      limit 1;
    end if;
  end if;
  global_position := case when last is null then from_position else least(last, 9223372036854775806) + 1 end;
  return next;
end
$$;

comment on function dibs.read_category(text, bigint, integer, text[], text, integer, integer) is
'Messages of one category from a global position on, that one included, in order: at most max_messages, which is 1 to 10000.

With types, only those of one of these; with correlation, only those with a correlation stream of this category; with a
group, only the member''s, by |group_hash| mod size. A call then looks at no more than 10000 messages.

After the messages comes one row without (its id is null): its global_position is where to go on, past all that was looked
at, and more says whether there is anything. With types, a correlation or a group, its data are the first and the last message
looked at: [{"id", "stream", "position", "globalPosition", "time" in microseconds since 1970}, ...], or null if there was none.';

create function dibs.last_message(stream text, message_type text default null)
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return query
  select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from dibs.messages m
  where m.stream_name = stream and (message_type is null or m.type = message_type)
  order by m.position desc
  limit 1;
  if not found then
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream)) then
      return query select t.* from dibs.erased_tombstone(stream) t where message_type is null or t.type = message_type;
    end if;
  end if;
end
$$;

comment on function dibs.last_message(text, text) is 'The last message of a stream, or the last of a type; no row if there is none.';

create function dibs.stream_version(stream text) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  return coalesce(
    (select m.position from dibs.messages m where m.stream_name = stream order by m.position desc limit 1),
    (select e.version from dibs.erased_streams e where e.digest = dibs.name_digest(stream)),
    -1
  );
end
$$;

comment on function dibs.stream_version(text) is 'The position of the last message of a stream, -1 for no stream. A stream that was deleted is at its tombstone.';

create function dibs.find_messages(stream text, ids uuid[])
returns table (
  id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  found_messages integer;
begin
  -- Writers wait while it looks, so it looks for no more than one write can have.
  if stream is null then
    raise exception 'invalid stream: it is no stream name' using errcode = 'DB001', column = 'stream';
  end if;
  if ids is null or cardinality(ids) > 1000 then
    raise exception 'invalid ids: there are at most 1000' using errcode = 'DB001', column = 'ids';
  end if;
  perform dibs.lock_category(split_part(stream, '-', 1));
  return query
  select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from (select distinct u.id from unnest(ids) u (id)) r
  cross join lateral (select * from dibs.messages m where m.id = r.id limit 1) m
  where m.stream_name = stream
  order by m.position;
  get diagnostics found_messages = row_count;

  if found_messages < (select count(distinct u.id) from unnest(ids) u (id)) then
    -- What is not there may have been there, and nobody can say that it was not
    -- written. A tombstone comes first in a stream, unless what is before it is being
    -- removed; then that begins above 0.
    if exists (select from dibs.erased_streams e where e.digest = dibs.name_digest(stream))
      or 0 < (select m.position from dibs.messages m where m.stream_name = stream order by m.position limit 1)
        and exists (
          select from dibs.messages m where m.stream_name = stream and m.type = 'dibs:Tombstone' order by m.position desc limit 1
        )
    then
      raise exception 'the stream was deleted, so nobody knows what was written to it'
        using errcode = 'DB002', column = 'stream';
    end if;
    -- A snapshot may be from before the writes that it has waited for.
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
      raise exception 'what was not written is known at READ COMMITTED only, and this transaction is at %', current_setting('transaction_isolation')
        using errcode = 'feature_not_supported', hint = 'Ask in a transaction of its own, at READ COMMITTED.';
    end if;

    -- To where no writer believes it to be, also one who learned of it before the store
    -- went back to a backup or a standby.
    insert into dibs.fences as f (category, fence)
    values (split_part(stream, '-', 1), (extract(epoch from clock_timestamp()) * 1000000)::bigint)
    on conflict (category) do update set fence = greatest(f.fence + 1, excluded.fence);
  else
    perform dibs.await_standby();
  end if;
end
$$;

comment on function dibs.find_messages(text, uuid[]) is
'Those messages of a stream that have one of the ids. It waits for every write to the category that is under way, so that
what it does not find was not written; and it raises the category''s fence, so that it will not be written by a call of
append with fences that is on its way. That holds once this is committed. What was trimmed is not found either, so ask
within the time that dibs.trim spares. Raises DB001 for more than 1000 ids, and, if it does not find all, DB002 for a stream
that was deleted and 0A000 above READ COMMITTED, where a transaction does not see what was written since it began.';

-- A descent of one index for each category, whatever the plan was made for.
create function dibs.heads(categories text[]) returns bigint[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return array(
    select coalesce((select m.global_position from dibs.messages m where m.category = c.name order by m.global_position desc limit 1), 0)
    from unnest(categories) with ordinality c (name, number)
    order by c.number
  );
end
$$;

comment on function dibs.heads(text[]) is
'The global position of the last message of each category, in the order given; 0 for a category without messages.';

create function dibs.listen() returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  perform pg_advisory_lock_shared(1684628076, 0); -- as dibs.listened says
  perform pg_advisory_lock(1684628076, 1);
  perform pg_advisory_unlock(1684628076, 1);
  listen dibs_messages;
end
$$;

comment on function dibs.listen() is
'Has this session hear on the channel dibs_messages what is written with notify, to the end of the session. What it does not
hear of is there when this has been committed.';

-- A store that has gone back, to a backup or a standby that was behind, may have kept what
-- a consumer has read, and lost what its handlers wrote. By a failover and a restore to a
-- moment the server gets another timeline. Files that are put back have the one they had,
-- and of that nobody can tell but who did it: the epoch is raised. No other history of the
-- store has had the same id.
create table dibs.epochs (
  number bigint not null default 0,
  id uuid not null default gen_random_uuid(),
  raised_at timestamptz
);

create unique index epochs_one_row on dibs.epochs ((true));
insert into dibs.epochs default values;

comment on table dibs.epochs is 'One row: how often the epoch was raised, and when last, and an id that it was given then.';

-- Of the log that the server writes, the name of each file begins with the timeline. In
-- recovery it writes none. A server may keep both from the owner, or be none of
-- PostgreSQL's own.
create function dibs.epoch() returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  server text;
begin
  begin
    select concat(c.system_identifier, '/', case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end)
    into server
    from pg_control_system() c;
  exception
    when insufficient_privilege or undefined_function or feature_not_supported then
      server := '/';
  end;
  return concat(server, '/', (select concat(e.number, '.', e.id) from dibs.epochs e));
end
$$;

comment on function dibs.epoch() is
'What stays the same for as long as nothing that was committed is lost, and may be another though nothing was: the server''s
identifier, its timeline, and, by number and id, the epoch that dibs.raise_epoch has raised. Without rights to ask for them,
the first two are empty.';

create function dibs.raise_epoch(id uuid default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  insert into dibs.epochs as e (number, id, raised_at)
  values (1, coalesce(raise_epoch.id, gen_random_uuid()), clock_timestamp())
  on conflict ((true)) do update set number = e.number + 1, id = excluded.id, raised_at = excluded.raised_at
  where e.id <> excluded.id;
  return dibs.epoch();
end
$$;

comment on function dibs.raise_epoch(uuid) is
'Says that the store may have lost what was committed, and returns its epoch, which is another than all before: consumers that
run begin again at their recorded positions. With the id that the epoch has already, it does nothing.';

perform dibs.revoke_defaults('dibs');

insert into dibs.migrations (name, sha256)
values ('0005_read.sql', '93627072ba20c4ae4dab5a35c5661c6e0da92873db25e80b37947d231042b6fc');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
-- +goose StatementEnd
