create or replace view message_store.type_summary as
select m.type collate "default" as type,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1 order by 1;

grant select on message_store.type_summary to message_store;
