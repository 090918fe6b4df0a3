create or replace function dibs.delete_stream(
  stream text, expected bigint default null, erase_name boolean default false, reason text default null,
  max_messages integer default 10000, dry_run boolean default false, id uuid default null
)
returns table (outcome text, version bigint, messages bigint, tombstone_stream text, more boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  if dibs.records_of_removal(stream) then
    raise exception 'invalid stream: must not be a stream of records of removals, which stay'
      using errcode = 'DB001', column = 'stream';
  end if;
  return query select * from dibs.remove_stream(stream, expected, erase_name, reason, max_messages, dry_run, id);
end
$$;

comment on function dibs.delete_stream(text, bigint, boolean, text, integer, boolean, uuid) is
'Deletes a stream at an expected version, or at any. A tombstone, a message of type dibs:Tombstone, comes to its end, and all
before it is removed. The stream''s version is the tombstone''s from then on: an initial write conflicts for ever, and a write
at the tombstone''s version, or at any, goes on after it. Nothing that was deleted comes back.

With erase_name the stream''s name goes too. The tombstone is then in a stream of the same category that is named by the SHA-256
of the name, and a reader finds it by the old name still. The records of its trimming go as well. Other streams that belong
to it are deleted by calls of their own: snapshots, commands. Do not write into reason anything that is to be
forgotten.

A tombstone keeps the hash by which a reservation tells a duplicate from a key that is used for something else.

A call removes at most max_messages, and as many records, so that it is short. The first puts the tombstone there; more says that there are
more to remove: call it again, with the same arguments. It is safe to call again at any time, and after an answer was
lost: with the same id, it answers as the first did. With dry_run nothing happens.

The stream that has the tombstone of another, which was deleted with its name, is not deleted: by it the other goes on. Nor is
one with the records of trims or of forgotten keys.

Answers with one row:
  deleted           version is the tombstone''s, messages how many there were, tombstone_stream where the tombstone is
  already_deleted   the same, of when it was
  version_conflict  nothing happened: the stream is at this version
  no_stream         nothing happened: there is none
  open_item         nothing happened: a queue has not finished a message of it
Raises DB001 for bad input, 0A000 above READ COMMITTED, 55P03 after 10 seconds of waiting for another transaction.';

grant execute on function dibs.delete_stream to dibs_admin;
