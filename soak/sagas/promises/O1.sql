-- what is posted arrives
select l.process || ' was given ' || l.id || ' at ' || l.position || ' of ' || l.stream || ', which is not there' as finding
from letters l
where not exists (select 1 from messages m where m.stream = l.stream and m.position = l.position and m.id = l.id)
union all
select count(*) || ' letters of ' || m.stream || ' did not arrive, the first of them at ' || min(m.position)
from messages m
where m.category = 'post' and m.position > coalesce((select max(l.position) from letters l where l.stream = m.stream and l.answer = 'ok'), -1)
group by m.stream;
