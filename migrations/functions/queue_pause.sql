-- To look through 10,000 held rows takes some 20 ms.
create or replace function dibs.queue_pause(held bigint) returns interval
language sql immutable
return greatest(held, 10000) * interval '100 microseconds';

comment on function dibs.queue_pause(bigint) is
'How often a take looks through so many held rows, for those behind an item that was finished by a caller who could not report it: each second, and less often where there are more than 10000.';
