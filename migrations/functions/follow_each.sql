-- The outcomes of writes of which several may be to one stream, one after the other, and several may
-- be one: all or nothing. A write with an id that is taken is left to append.
create or replace function dibs.follow_each(
  streams text[], expected bigint[], counts integer[], fences bigint[], ids uuid[],
  versions_found bigint[], fences_found bigint[], taken uuid[], meets boolean[], joined boolean[],
  out outcomes text, out versions bigint[], out names text[], out positions bigint[], out writes integer[]
)
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  writes_of constant integer := cardinality(streams);
  firsts integer[]; -- for each write, the first to the same stream
  at integer := 0;
  first integer;
  last integer;     -- of the writes that are one with the write at hand
  before integer;   -- the messages of the writes before it
  outcome text;
  met boolean;
begin
  select array_agg(f.first order by f.n) into firsts
  from (
    select u.n, min(u.n) over (partition by u.name) as first from unnest(streams) with ordinality u (name, n)
  ) f;
  outcomes := '';
  versions := versions_found;
  last := 0;
  for w in 1 .. writes_of loop
    if w > last then
      last := w;
      before := at;
      outcome := '';
      loop
        first := firsts[last];
        outcome := outcome || case
          when versions_found[first] < -2 or taken is not null and ids[before + 1 : before + counts[last]] && taken then 'a'
          when fences_found[last] is null then 'b'
          when fences[last] <> fences_found[last] then 'f'
          when expected[last] in (versions_found[first], -2) then 'w'
          else 'c'
        end;
        before := before + counts[last];
        exit when joined is null or last = writes_of or not joined[last + 1];
        last := last + 1;
      end loop;
      outcome := case
        when strpos(outcome, 'a') > 0 then 'a'
        when strpos(outcome, 'b') > 0 then 'b'
        when strpos(outcome, 'f') > 0 then 'f'
        when strpos(outcome, 'c') > 0 then 'c'
        else 'w'
      end;
    end if;
    first := firsts[w];
    outcomes := outcomes || outcome;
    for i in 1 .. counts[w] loop
      at := at + 1;
      writes[at] := w;
      if outcome = 'w' then
        versions_found[first] := versions_found[first] + 1;
        positions[at] := versions_found[first];
      else
        positions[at] := null;
      end if;
    end loop;
    versions[w] := case outcome when 'f' then fences_found[w] else versions_found[first] end;
  end loop;
  -- A write is told what is there in the end. If the writes behind it have brought all its streams
  -- to their versions, it has met nothing: append adds it.
  met := false;
  for w in reverse coalesce(cardinality(meets), 0) .. 1 loop
    met := met or expected[w] not in (versions_found[firsts[w]], -2);
    if not coalesce(joined[w], false) then
      if not met and meets[w] and substr(outcomes, w, 1) = 'c' then
        outcomes := overlay(outcomes placing 'a' from w for 1);
      end if;
      met := false;
    end if;
  end loop;
  select array_agg(streams[u.write] order by u.n) into names from unnest(writes) with ordinality u (write, n);
end
$$;

comment on function dibs.follow_each(text[], bigint[], integer[], bigint[], uuid[], bigint[], bigint[], uuid[], boolean[], boolean[]) is
'A letter and a version for each write, as append_each answers; and for each message its stream, its position, which is null if
it is not to be added, and its write. The versions found of a stream are taken from its first write, the fences from each: null for
a category that is busy.';
