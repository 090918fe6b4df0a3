create or replace function dibs.raise_epoch(id uuid default null) returns text
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
'Says that the store may have lost commits, and returns its epoch, which is another than all before: consumers that run begin
again at their recorded positions. With the id that the epoch has already, it does nothing.';

grant execute on function dibs.raise_epoch to dibs_admin;
