-- The records of an adoption, from its first step until the DBA drops the old schema. They
-- have a schema of their own, so that the store's is the same, adopted or not.

-- One row. The state is
--   copying  message-db's table is the store, and is being copied
--   adopted  dibs.messages is the store
--   undone   message-db's table is the store again
create table dibs_adoption.state (
  one boolean primary key default true check (one),
  state text not null check (state in ('copying', 'adopted', 'undone')),
  version text not null, -- message-db's
  started_at timestamptz not null default clock_timestamp(),

  -- Message-db's writers are held to it that nothing up to here comes or changes any
  -- more. Null until then.
  held bigint,

  -- The last global position that the bulk copies, in whole ranges; the rest is the tail. A
  -- range ends here.
  frontier bigint,

  found bigint not null, -- messages when it began
  messages bigint,      -- how many there were at the switch
  last_position bigint, -- of these
  switched_at timestamptz,
  grantees text[], -- roles with rights in the old schema, for the new one and for an undo
  undone_at timestamptz
);

-- A range of global positions is copied in one transaction, which says so here.
create table dibs_adoption.ranges (
  after bigint primary key,
  upto bigint not null check (upto > after),
  messages bigint -- null until it is copied
);

-- Of dibs.messages, dropped while it is filled.
create table dibs_adoption.indexes (
  name text primary key,
  definition text not null,
  contype "char" -- of the constraint that it is of: p, u, or null for none
);

-- Counts and checksums of pieces of both tables, by stream. Those of the copy are negative,
-- so the sum of equal pieces is zero.
create unlogged table dibs_adoption.sums (
  stream_name text collate "C" not null,
  tail boolean not null,
  messages bigint not null,
  checksum bigint not null
);

-- Messages that were trimmed or deleted since the switch, and which the old table has
-- still.
create table dibs_adoption.removed (
  id uuid primary key
);

-- Each part seeds the hash of the next. No JSON is the empty text. The seconds of a
-- time are whole microseconds on either side, and jsonb becomes the same text here and
-- there.
create function dibs_adoption.checksum(
  global_position bigint, "position" bigint, "time" timestamp, stream_name text, type text, id uuid, data text, metadata text
) returns bigint
language sql immutable parallel safe
as $$
  select pg_catalog.hashtextextended(coalesce(metadata, '') collate "C",
    pg_catalog.hashtextextended(coalesce(data, '') collate "C",
    pg_catalog.hashtextextended(type collate "C",
    pg_catalog.hashtextextended(stream_name collate "C",
    pg_catalog.hashint8extended("position",
    pg_catalog.hashint8extended(global_position,
    pg_catalog.uuid_hash_extended(id,
    pg_catalog.timestamp_hash_extended("time", 0))))))))
$$;

-- On dibs.messages while it is not the store. The copying session says so in a setting, and
-- is the owner: anyone can make the setting alone.
create function dibs_adoption.refuse_native() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('dibs.adopting', true) = 'on'
    and pg_has_role(session_user, (select relowner from pg_class where oid = tg_relid), 'member')
  then
    return null;
  end if;
  if (select state from dibs_adoption.state) = 'undone' then
    raise exception 'nothing is written here: the messages were given back to message-db'
      using errcode = 'object_not_in_prerequisite_state', hint = 'Write through message-db, or run dibs migrate adopt again.';
  end if;
  raise exception 'nothing is written here yet: the messages of message-db are being adopted'
    using errcode = 'object_not_in_prerequisite_state', hint = 'Write through message-db until dibs migrate adopt is done.';
end
$$;

-- On message-db's table. The argument says why.
create function dibs_adoption.refuse_old() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception '% of message-db''s table is refused: %', lower(tg_op), tg_argv[0]
    using errcode = 'object_not_in_prerequisite_state';
end
$$;

-- On dibs.messages once it is the store. An undo must not bring trimmed or deleted messages
-- back.
create function dibs_adoption.note_removed() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  -- By the catalog, since the owner of this may not look into that schema.
  if not exists (select from pg_namespace where nspname = 'message_store_before_dibs') then
    return null; -- there is no way back
  end if;
  insert into dibs_adoption.removed (id)
  select r.id from gone r
  where r.global_position <= (select last_position from dibs_adoption.state)
  on conflict do nothing;
  return null;
end
$$;

revoke all on all tables in schema dibs_adoption from public;
revoke all on all functions in schema dibs_adoption from public;
