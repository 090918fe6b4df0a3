-- internal/queuing.DueField. Another client may have written anything there. An interval times a number is a
-- double's product: days are whole, and the microseconds of a day are exact. A day has 24 hours where no zone changes its clocks.
create or replace function dibs.queue_due(metadata json) returns timestamptz
language sql immutable
return case
  when json_typeof(metadata) = 'object' and json_typeof(metadata -> 'dueAt') = 'number' and metadata ->> 'dueAt' ~ '^[0-9]{1,18}$'
  then (
    timestamp 'epoch' + (metadata ->> 'dueAt')::bigint / 86400000000 * interval '1 day'
    + (metadata ->> 'dueAt')::bigint % 86400000000 * interval '1 microsecond'
  ) at time zone 'UTC'
end;

comment on function dibs.queue_due(json) is 'The time before which a queue does not offer a message with this metadata, or null.';
