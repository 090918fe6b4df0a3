create or replace function dibs.correlation_category(metadata json) returns text
language sql immutable parallel safe
return split_part(metadata ->> 'correlationStreamName', '-', 1);

comment on function dibs.correlation_category(json) is 'The category of the stream that the metadata is correlated with, or null.';
