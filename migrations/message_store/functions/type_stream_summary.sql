create or replace view message_store.type_stream_summary as
select m.type collate "default" as type, m.stream_name collate "default" as stream_name,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1, 2 order by 1, 2;

grant select on message_store.type_stream_summary to message_store;
