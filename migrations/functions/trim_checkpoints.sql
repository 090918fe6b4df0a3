-- A consumer removes its own old checkpoints. It is a writer, and a writer removes nothing else. The last
-- 100 stay at least: no write of a checkpoint is resolved, and nothing is looked for, further back.
create or replace function dibs.trim_checkpoints(stream text, keep bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  records text;
  removed bigint;
begin
  if stream is null or stream !~ '^[^-]*[:+]position-[^+-]+[+][0-9]{1,18}$' then
    raise exception 'invalid stream: must be a stream of a consumer''s checkpoints' using errcode = 'DB001', column = 'stream';
  end if;
  if keep is null or keep < 100 then
    raise exception 'invalid keep: must be at least 100' using errcode = 'DB001', column = 'keep';
  end if;
  if exists (
    select from (
      select m.type from dibs.messages m where m.stream_name = stream order by m.position limit 10000
    ) m
    where m.type <> 'Recorded'
  ) then
    raise exception 'invalid stream: must have only checkpoints' using errcode = 'DB001', column = 'stream';
  end if;
  select t.removed into removed from dibs.trim(stream, keep => keep, reason => 'checkpoints', min_age => '0') t;
  if removed > 0 then
    -- The records of earlier trims tell nothing that the last does not.
    perform from dibs.trim(dibs.retention_stream(stream), keep => 1, min_age => '0');
  end if;
  return removed;
end
$$;

comment on function dibs.trim_checkpoints(text, bigint) is
'Removes the first messages of a stream of checkpoints, as account:position-accounts+0, but the last keep, at least 100, and at
most 10,000 in one call. Returns how many it removed. The removal is recorded as by dibs.trim, in one record that replaces those before
it. Any writer may call it.
Raises DB001 for a stream that is none of checkpoints, 0A000 above READ COMMITTED, 55P03 after 10 seconds of waiting for another
transaction.';

grant execute on function dibs.trim_checkpoints to dibs_writer, dibs_worker, dibs_operator;
