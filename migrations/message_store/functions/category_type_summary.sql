create or replace view message_store.category_type_summary as
select m.category::varchar collate "default" as category, m.type collate "default" as type,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1, 2 order by 1, 2;

grant select on message_store.category_type_summary to message_store;
