-- The first row of a transaction appends all of its rows, in their order, behind all locks; each of the others
-- then looks for itself, and is gone. What append_shared does not tell, append does, in a transaction that goes
-- on: so the first attempt is one step that can be taken back.
create or replace function dibs.append_staged() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  s dibs.staged;
  first dibs.messages;
  answer text;
  at text;
  seen boolean;
  current constant boolean := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
begin
  if not exists (select from dibs.staged x where x.xact = new.xact and x.n = new.n) then
    return null;
  end if;
  perform set_config('dibs.staged', '', true); -- from here on what is staged goes before what others append
  begin
    perform dibs.lock_shared(array(select distinct x.stream from dibs.staged x where x.xact = new.xact));
    if not current then -- as append does
      insert into dibs.removals (category, removals)
      select distinct split_part(x.stream, '-', 1), 0 from dibs.staged x where x.xact = new.xact order by 1
      on conflict do nothing;
      perform from dibs.removals r
      where r.category in (select split_part(x.stream, '-', 1) from dibs.staged x where x.xact = new.xact)
      for share;
    end if;
    for s in select * from dibs.staged x where x.xact = new.xact order by x.n loop
      perform dibs.append_shared(s.stream, s.expected, s.id, s.type, s.data, s.metadata, marked => null);
    end loop;
  exception
    when sqlstate 'DB003' or unique_violation then
      if current then
        perform dibs.lock_shared(array(select distinct x.stream from dibs.staged x where x.xact = new.xact)); -- again
      else -- append takes the categories' locks for itself: behind a share of them, two such transactions would wait for each other
        perform dibs.lock_category(c.name)
        from (
          select distinct split_part(x.stream, '-', 1) collate "C" as name, split_part(x.stream, '-', 1) || '-' collate "C" as by
          from dibs.staged x where x.xact = new.xact
          order by 2 offset 0
        ) c;
      end if;
      for s in select * from dibs.staged x where x.xact = new.xact order by x.n loop
        select a.outcome, a.stream || ' is at version ' || a.version into answer, at
        from dibs.append(array[s.stream], array[s.expected], array[1], array[s.id], array[s.type], array[s.data], array[s.metadata],
          shared => true) a;
        if answer in ('written', 'duplicate') then
          continue;
        end if;
        if answer = 'version_conflict' and s.expected = -1 then
          select m.* into first from dibs.messages m where m.stream_name = s.stream order by m.position limit 1;
          if first.position = 0 and first.type = s.type and first.data::jsonb is not distinct from s.data::jsonb then
            continue;
          end if;
        end if;
        -- A snapshot from before the other message does not show whose it is: a transaction that begins anew is told.
        if answer = 'version_conflict' then
          seen := s.expected <> coalesce((select max(m.position) from dibs.messages m where m.stream_name = s.stream), -1);
        else
          seen := exists (select from dibs.messages m where m.id = s.id);
        end if;
        if not seen then
          raise exception 'the staged message % was not written: another transaction wrote one that this snapshot does not show', s.id using errcode = 'serialization_failure';
        end if;
        raise exception 'the staged message % was not written: % (%)', s.id, answer, at
          using errcode = 'DB003', hint = 'The transaction was rolled back. Either the stream has another first message than the one that was staged, or a message has the id already.';
      end loop;
  end;
  delete from dibs.staged x where x.xact = new.xact;
  return null;
end
$$;

comment on function dibs.append_staged() is 'Appends the staged messages of a transaction, in COMMIT.';

-- There is no "or replace" for a constraint trigger.
do $$
begin
  if not exists (select from pg_trigger t where t.tgrelid = 'dibs.staged'::regclass and t.tgname = 'staged_append') then
    create constraint trigger staged_append after insert on dibs.staged
    deferrable initially deferred for each row execute function dibs.append_staged();
  end if;
end
$$;
