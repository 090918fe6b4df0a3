create or replace function dibs.of_slots(of_category text, of_position bigint, slots bigint) returns boolean
language sql stable
return coalesce((
  select slots >> abs(m.group_hash % 32)::integer & 1 = 1
  from dibs.messages m
  where m.category = of_category and m.global_position = of_position
), true);

comment on function dibs.of_slots(text, bigint, bigint) is
'Whether a message is of one of some slots, a bit each: the members of a consumer group of 32. One that was removed is of all.';
