-- PostgreSQL has transactions that notify commit one at a time, so a writer whose transaction is a
-- caller's rings behind it. A notification without a position is news to every reader: its message
-- may be below one that was told before.
create or replace function dibs.ring(categories text[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(cardinality(categories), 0) not between 1 and 100 or array_position(categories, null) is not null then
    raise exception 'invalid categories: must be 1 to 100' using errcode = 'DB001', column = 'categories';
  end if;
  if dibs.listened() then
    perform pg_notify('dibs_messages', 'dibs.' || c.name || '-0') from unnest(categories) c (name);
  end if;
end
$$;

comment on function dibs.ring(text[]) is 'Notifies sessions that have called dibs.listen that there may be messages in categories.';

grant execute on function dibs.ring to dibs_writer, dibs_worker, dibs_operator;
