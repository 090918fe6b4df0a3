-- The class is "dibs" in ASCII, so that pg_locks shows whose locks they are and
-- nobody else's are in their way. Two categories, or one category of two schemas,
-- that hash alike wait for each other now and then, and nothing worse.
create or replace function dibs.lock_key(category text) returns integer
language sql immutable parallel safe
return hashtext('dibs.' || category);
