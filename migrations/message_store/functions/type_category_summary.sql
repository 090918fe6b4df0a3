create or replace view message_store.type_category_summary as
select m.type collate "default" as type, m.category::varchar collate "default" as category,
  count(*) as message_count, round(count(*) / sum(count(*)) over () * 100, 2) as percent
from dibs.messages m group by 1, 2 order by 1, 2;

grant select on message_store.type_category_summary to message_store;
