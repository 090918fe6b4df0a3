create or replace view dibs.stored_messages as
select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time, m.category
from dibs.messages m;

comment on view dibs.stored_messages is
'All messages, for who may read. Clients of one''s own call read_stream and read_category instead, whose plans are good
whatever the size of the table, and which know of streams that were erased.';

grant select on dibs.stored_messages to dibs_reader, dibs_writer, dibs_admin;
