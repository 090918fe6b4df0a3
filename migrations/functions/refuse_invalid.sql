-- Raises DB001 for a call of append that Go's validators would refuse.
create or replace function dibs.refuse_invalid(
  streams text[], expected bigint[], counts integer[],
  ids uuid[], types text[], data json[], metadata json[], past jsonb default null, after uuid[] default null
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  asked constant integer := coalesce(cardinality(streams), 0);
  messages constant integer := coalesce(cardinality(ids), 0);
  field text;
  rule text;
  at integer;
begin
  if asked not between 1 and 100 then
    field := 'streams'; rule := 'there are 1 to 100 streams';
  elsif cardinality(expected) is distinct from asked then
    field := 'expected'; rule := 'there is one expected version for each stream';
  elsif cardinality(counts) is distinct from asked then
    field := 'counts'; rule := 'must have one value for each stream';
  elsif ids is null or messages > 1000 then
    field := 'ids'; rule := 'must be at most 1000';
  elsif cardinality(types) is distinct from messages then
    field := 'types'; rule := 'must have one value for each message';
  elsif cardinality(data) is distinct from messages then
    field := 'data'; rule := 'must have one value for each message';
  elsif cardinality(metadata) is distinct from messages then
    field := 'metadata'; rule := 'must be one, or null, for each message';
  elsif past is not null and (jsonb_typeof(past) <> 'array' or jsonb_array_length(past) <> asked) then
    field := 'past'; rule := 'must be one list, or null, for each stream';
  elsif after is not null and array_dims(after) is distinct from '[1:' || asked || ']' then
    field := 'after'; rule := 'must be one id, or null, for each stream';
  elsif (select count(*) from unnest(counts) c where c >= 0) <> asked
    or (select sum(c) from unnest(counts) c) <> messages
  then
    field := 'counts'; rule := 'must add up to the number of messages';
  end if;

  if field is null then
    select s.n, case
        when not dibs.valid_stream_name(s.name) then 'must be a stream name'
        when s.nth > 1 then 'must not be named twice'
      end
    into at, rule
    from (
      select u.n, u.name, row_number() over (partition by u.name order by u.n) as nth
      from unnest(streams) with ordinality u (name, n)
    ) s
    where not dibs.valid_stream_name(s.name) or s.nth > 1
    order by s.n
    limit 1;
    if found then
      field := 'streams';
    end if;
  end if;

  if field is null then
    select s.n into at
    from unnest(expected, counts) with ordinality s (version, count, n)
    where s.version is null or s.version < -2 and s.version <> -4 and s.version not between -2199023255552 and -1099511627777 or s.count = 0 and s.version = -2
    order by s.n
    limit 1;
    if found then
      field := 'expected'; rule := 'must be a position from 0, -1 for no stream, -4 for a stream that exists, or, with messages, -2 for any version';
    end if;
  end if;

  if field is null and past is not null then
    select s.n into at
    from unnest(expected) with ordinality s (version, n)
    cross join lateral (select past -> (s.n - 1)::integer as types) p
    where jsonb_typeof(p.types) <> 'null' and not (
      jsonb_typeof(p.types) = 'array' and jsonb_array_length(p.types) between 1 and 100 and s.version >= -1
      and not jsonb_path_exists(p.types, 'strict $[*] ? (@.type() != "string")')
    )
    order by s.n
    limit 1;
    if found then
      field := 'past'; rule := 'must be null, or, with an expected version, a list of 1 to 100 message types';
    end if;
  end if;

  if field is null and after is not null then
    select s.n into at from unnest(expected, after) with ordinality s (version, id, n) where s.id is not null and s.version < 0 order by s.n limit 1;
    if found then
      field := 'after'; rule := 'must be null, or, with an expected version from 0 on, the id of the message there';
    end if;
  end if;

  if field is null then
    select r.n, case
        when r.id is null or r.id = '00000000-0000-0000-0000-000000000000' or r.nth > 1 then 'ids'
        when not dibs.valid_type(r.type) then 'types'
        when not dibs.valid_data(r.data) then 'data'
        when not dibs.valid_metadata(r.metadata) then 'metadata'
        else 'data'
      end, case
        when r.nth > 1 then 'must not be there twice'
        when r.id is null or r.id = '00000000-0000-0000-0000-000000000000' then 'must be a message id'
        when not dibs.valid_type(r.type) then 'must be a message type'
        when not dibs.valid_data(r.data) then 'must be a JSON object that can be stored'
        when not dibs.valid_metadata(r.metadata) then 'must be metadata that can be stored'
        else 'must be at most 983040 bytes together with the metadata'
      end
    into at, field, rule
    from (
      select u.*, row_number() over (partition by u.id order by u.n) as nth
      from unnest(ids, types, data, metadata) with ordinality u (id, type, data, metadata, n)
    ) r
    where r.id is null or r.id = '00000000-0000-0000-0000-000000000000' or r.nth > 1
      or not dibs.valid_type(r.type)
      or not dibs.valid_data(r.data)
      or not dibs.valid_metadata(r.metadata)
      or octet_length(r.data::text) + coalesce(octet_length(r.metadata::text), 0) > 983040
    order by r.n
    limit 1;
  end if;

  if field is null and
    (select sum(octet_length(r.data::text) + coalesce(octet_length(r.metadata::text), 0))
     from unnest(data, metadata) r (data, metadata)) > 16777216
  then
    field := 'data'; rule := 'must be at most 16777216 bytes for all messages, together with the metadata';
  end if;

  if field is not null then
    raise exception 'invalid %: %', field || coalesce('[' || at || ']', ''), rule
      using errcode = 'DB001', column = field, hint = rule;
  end if;
end
$$;

comment on function dibs.refuse_invalid(text[], bigint[], integer[], uuid[], text[], json[], json[], jsonb, uuid[]) is
'Raises DB001, with the parameter as the column, if append may not be called with these arguments.';
