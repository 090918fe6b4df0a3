-- a conflict names a version that is not the one expected, and that the stream had
select name || ' expected version ' || expected || ' of ' || stream || ', and was refused at version ' || actual || '; it ends at ' || last as finding
from (select c.*, coalesce((select max(m.position) from messages m where m.stream = c.stream), -1) as last from conflicts c)
where expected = -2 or actual = expected or actual > last and not exists (select 1 from failovers);
