-- The first message of a stream from a position on, and below another, that an open dead letter
-- refers to, and the letter's stream; nulls for none. The letters of category account:command are
-- in account:command+deadLetter-<consumer>+<message id>. The search looks each message up under the
-- name of each consumer that has letters, so it does not grow with the number of letters.
create or replace function dibs.open_letter(stream text, first bigint, below bigint, out "position" bigint, out letter text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  category constant text := split_part(stream, '-', 1);
  letters constant text := category || case when strpos(category, ':') > 0 then '+' else ':' end || 'deadLetter';
  consumer text; -- the beginning of the names of its letters
  after text := letters || '-';
  found_at record;
begin
  if first >= below then
    return;
  end if;
  loop
    select m.stream_name into after
    from dibs.messages m
    where m.stream_name > after and m.stream_name < letters || '.'
    order by m.stream_name
    limit 1;
    exit when not found;
    continue when strpos(substr(after, length(letters) + 1), '+') = 0; -- the stream of another client
    consumer := letters || split_part(substr(after, length(letters) + 1), '+', 1);
    after := consumer || ','; -- behind all names that go on with a plus sign

    select m.position, l.stream_name into found_at
    from dibs.messages m
    cross join lateral (
      select o.stream_name, o.type
      from dibs.messages o
      where o.stream_name = consumer || '+' || m.id and o.type in ('Parked', 'Redriven', 'dibs:Tombstone')
      order by o.position desc
      limit 1
    ) l
    where m.stream_name = stream and m.position >= first and m.position < coalesce(open_letter.position, below) and l.type = 'Parked'
    order by m.position
    limit 1;
    if found then
      position := found_at.position;
      letter := found_at.stream_name;
    end if;
  end loop;
end
$$;
