-- The version is raised with the first change of any file of the tables and functions
-- after a release, and the second number with a change that stops clients of before.
create or replace function dibs.schema_version(out version integer, out serves integer)
language sql immutable parallel safe
return (9, 9);

comment on function dibs.schema_version() is
'The version of this schema, and the oldest version that a client may have been made for and still work with it.';

grant execute on function dibs.schema_version to dibs_reader, dibs_writer, dibs_worker, dibs_operator, dibs_admin;
