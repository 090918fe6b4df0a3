-- Messages are found by this, by group_hash and by correlation_category, which are columns.
-- Generated columns would say the same, but every statement that adds messages would read their
-- expressions anew, and store each row twice: that is half as long again for a message, and more
-- for one by itself. So each function that adds messages puts their results in, and
-- dibs.verify_table checks that.
create or replace function dibs.category(stream_name text) returns text
language sql immutable parallel safe
return split_part(stream_name, '-', 1);

comment on function dibs.category(text) is 'The category of a stream: the part of its name before the first dash.';
