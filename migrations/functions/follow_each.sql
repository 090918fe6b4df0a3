-- The outcomes of writes of which several may be to one stream, one after the other. A write with
-- an id that is taken is left to append.
create or replace function dibs.follow_each(
  streams text[], expected bigint[], counts integer[], fences bigint[], ids uuid[],
  versions_found bigint[], fences_found bigint[], taken uuid[], meets boolean[],
  out outcomes text, out versions bigint[], out names text[], out positions bigint[], out writes integer[]
)
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  firsts integer[]; -- for each write, the first to the same stream
  at integer := 0;
  first integer;
  outcome text;
begin
  select array_agg(f.first order by f.n) into firsts
  from (
    select u.n, min(u.n) over (partition by u.name) as first from unnest(streams) with ordinality u (name, n)
  ) f;
  outcomes := '';
  versions := versions_found;
  for w in 1 .. cardinality(streams) loop
    first := firsts[w];
    outcome := case
      when versions_found[first] < -2 or ids[at + 1 : at + counts[w]] && taken then 'a'
      when fences_found[w] is null then 'b'
      when fences[w] <> fences_found[w] then 'f'
      when expected[w] in (versions_found[first], -2) then 'w'
      else 'c'
    end;
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
  -- A write is told what is there in the end. If the writes behind it have brought the stream to
  -- its version, it has met nothing: append adds it.
  for w in 1 .. coalesce(cardinality(meets), 0) loop
    if meets[w] and substr(outcomes, w, 1) = 'c' and expected[w] = versions_found[firsts[w]] then
      outcomes := overlay(outcomes placing 'a' from w for 1);
    end if;
  end loop;
  select array_agg(streams[u.write] order by u.n) into names from unnest(writes) with ordinality u (write, n);
end
$$;

comment on function dibs.follow_each(text[], bigint[], integer[], bigint[], uuid[], bigint[], bigint[], uuid[], boolean[]) is
'A letter and a version for each write, as append_each answers; and for each message its stream, its position, which is null if
it is not to be added, and its write. The versions found of a stream are taken from its first write, the fences from each: null for
a category that is busy.';
