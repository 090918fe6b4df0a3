create or replace function dibs.count_category(
  category text, from_position bigint default 0, max_messages bigint default 100000,
  types text[] default null, correlation text default null, group_size integer default null, group_member integer default null
)
returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  perform dibs.refuse_invalid_page(from_position, 1);
  if max_messages is null or max_messages < 1 then
    raise exception 'invalid limit: must be at least 1' using errcode = 'DB001', column = 'max_messages';
  end if;
  if cardinality(types) > 1000 then
    raise exception 'invalid types: must be at most 1000' using errcode = 'DB001', column = 'types';
  end if;
  if group_size is not null and (group_size not between 1 and 1024 or group_member is null or group_member < 0 or group_member >= group_size)
    or group_size is null and group_member is not null
  then
    raise exception 'invalid group: the size must be between 1 and 1024, and the member at least 0 and less than the size'
      using errcode = 'DB001', column = 'group_member';
  end if;

  if cardinality(types) > 0 or correlation is not null or group_size > 1 then
    return (
      select count(*)
      from (
        select from dibs.messages m
        where m.category = count_category.category and m.global_position >= from_position
          and (coalesce(cardinality(types), 0) = 0 or m.type = any (types))
          and (correlation is null or m.correlation_category = correlation)
          and (group_size is null or abs(m.group_hash % group_size) = group_member)
        limit max_messages
      ) counted
    );
  end if;
  -- The index alone tells.
  return (
    select count(*)
    from (
      select from dibs.messages m
      where m.category = count_category.category and m.global_position >= from_position
      limit max_messages
    ) counted
  );
end
$$;

comment on function dibs.count_category(text, bigint, bigint, text[], text, integer, integer) is
'How many messages read_category would return, page after page, from a global position on; it stops counting at max_messages.';

grant execute on function dibs.count_category to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
