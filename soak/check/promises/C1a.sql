-- every message from the start position on is handled or given up on
select g.name || ' never handled ' || m.stream || '@' || m.position || ' at ' || m.global as finding from met m join groups g on g.g = m.g, limits x where m.done = x.never
union all
select d.name || ' is of a life ' || d.process || ':' || d.run || ', of which there is nothing' from deliveries d where not exists (select 1 from runs r where r.process = d.process and r.op = d.run);
