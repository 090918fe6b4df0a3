-- How the streams of a store that was trimmed look. The positions of a stream are dense
-- from its first message on. A stream whose first message is above 0
--
--   - was deleted, if that message has the type dibs:Tombstone: messages behind the
--     tombstone were written later. Messages before a tombstone are being removed;
--   - or was trimmed: the last message of type dibs:Trimmed in dibs.retention_stream(name)
--     has the position before the first in its data, as upTo; unless those records were
--     deleted, and begin with a tombstone themselves;
--   - or is itself one of those streams, of a category that ends with the type
--     retention: they are trimmed without a record.
--
-- A stream that is in dibs.erased_streams is empty, and the version there is the
-- position of a tombstone in the stream that is named by the digest. If another client
-- writes to a stream of such a name, positions are left out there before a tombstone.

-- Only removals take this lock, and before any lock of a category. The class is "dibr"
-- in ASCII.
create or replace function dibs.lock_retention(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'messages are removed at READ COMMITTED only, and this transaction is at %', current_setting('transaction_isolation')
      using errcode = 'feature_not_supported';
  end if;
  perform pg_advisory_xact_lock(1684628082, dibs.lock_key(category));
end
$$;

comment on function dibs.lock_retention(text) is 'Waits for every transaction that removes messages of the category, and holds off others. Writers do not wait for it.';
