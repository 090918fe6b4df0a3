-- messagestore/queuing.DueField. Another client may have written anything there.
create or replace function dibs.queue_due(metadata json) returns timestamptz
language sql immutable
return case
  when json_typeof(metadata) = 'object' and json_typeof(metadata -> 'dueAt') = 'number' and metadata ->> 'dueAt' ~ '^[0-9]{1,18}$'
  then timestamptz 'epoch' + (metadata ->> 'dueAt')::bigint * interval '1 microsecond'
end;

comment on function dibs.queue_due(json) is 'The time before which a queue does not offer a message with this metadata, or null.';
