-- a conflict names a version that is not the one expected, and that the stream had
select c.name || ' expected version ' || c.expected || ' of ' || c.stream || ', and was refused at version ' || c.actual || '; it ends at ' || coalesce(max(m.position), -1) as finding
from conflicts c left join messages m on m.stream = c.stream
group by c.o
having c.expected = -2 or c.actual = c.expected or c.actual > coalesce(max(m.position), -1) and not exists (select 1 from failovers);
