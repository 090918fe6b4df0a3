-- What is appended at once comes before what the transaction has staged, and that is not the order of the calls.
create or replace function dibs.refuse_staged(streams text[]) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  name text;
begin
  select s.stream into name from dibs.staged s where s.xact = pg_current_xact_id_if_assigned() and s.stream = any (streams) limit 1;
  if found then
    raise exception 'invalid stream %: this transaction has staged a message for it, which would come after this one: stage this one too', name
      using errcode = 'DB001', column = 'stream';
  end if;
end
$$;

comment on function dibs.refuse_staged(text[]) is 'Raises DB001 for a stream for which this transaction has staged a message.';
