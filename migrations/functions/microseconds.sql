-- Stable, as extract is: an immutable function with that in it is not inlined, and a call of one costs a microsecond.
create or replace function dibs.microseconds(at timestamptz) returns bigint
language sql stable parallel safe
return case when isfinite(at) then (extract(epoch from at) * 1000000)::bigint end;

comment on function dibs.microseconds(timestamptz) is 'The microseconds from 1970 to a time; null for infinity.';
