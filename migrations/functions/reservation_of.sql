-- The properties that a tombstone keeps of the message that made a reservation: the hash of the
-- command, and its reserver. The key is in the stream's name already, and nowhere once that is
-- erased.
create or replace function dibs.reservation_of(metadata json, named boolean) returns json
language sql immutable parallel safe
return (
  select json_object_agg(p.key, case when p.key = 'reservedKey' and not named then '"(erased)"'::json else p.value end order by p.key)
  from json_each(case when json_typeof(metadata -> 'localProperties') = 'object' then metadata -> 'localProperties' end) p
  where p.key in ('reservedBy', 'reservedDigest', 'reservedFor', 'reservedHandled', 'reservedKey')
    and json_typeof(metadata -> 'localProperties' -> 'reservedDigest') = 'string'
);
