create or replace view dibs.erased as
select exists (select from dibs.erased_streams) as any_stream;

comment on view dibs.erased is 'Whether any stream was deleted with its name: where none was, no reader has to look for its tombstone.';

grant select on dibs.erased to dibs_reader, dibs_writer, dibs_admin;
