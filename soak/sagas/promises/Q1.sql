-- a timer rings
select 'timer ' || i.value || ' was set by ' || c.process || ', and is not there' as finding
from calls c, json_each(c.asked, '$.ids') i
where c.call = 'set' and c.answer = 'ok' and not exists (select 1 from messages m where m.id = i.value and m.category = 'ring')
union all
select 'timer ' || id || ' did not ring' from messages where category = 'ring' and id not in (select id from rings)
union all
select 'timer ' || id || ' rang, and is not there' from rings where again = 0 and id not in (select id from messages where category = 'ring');
