-- Each counts all messages, and says how many of a hundred they are. Texts come in
-- the order that they have in this database, which is not that of our columns.
create or replace view message_store.stream_summary as
select m.stream_name collate "default" as stream_name,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1 order by 1;

grant select on message_store.stream_summary to message_store;
