-- What is found by, and stands in columns of its own. Generated columns would say the
-- same, but every statement that adds messages would read their expressions anew, and
-- store each row twice: that is half as long again for a message, and more for one by
-- itself. So whoever adds messages puts in what these return, and dibs.verify_table
-- looks whether they did.
create or replace function dibs.category(stream_name text) returns text
language sql immutable parallel safe
return split_part(stream_name, '-', 1);

comment on function dibs.category(text) is 'The category of a stream: what is before the first dash.';
