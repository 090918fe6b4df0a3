-- A function by itself, so that a call that does not wait changes no setting, which takes time.
create or replace function dibs.wait_for_category(category text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
  perform pg_advisory_xact_lock(1684628083, dibs.lock_key(category));
end
$$;

comment on function dibs.wait_for_category(text) is 'lock_category, for no longer than 10 seconds.';
