-- a message is where its writer was told, and so is a repeated one
select p.name || ' was told ' || p.stream || '@' || p.version || ', ' || p.global || ' of all, of message ' || s.id || ', which is ' || m.stream || '@' || m.position || ', ' || m.global as finding
from sent s join parts p on p.rowid = s.p join messages m on m.rowid = s.message
where p.outcome = 'yes' and not exists (select 1 from undone u where u.s = s.rowid)
	and (m.stream <> p.stream or s.n = p.n - 1 and (m.position <> p.version or p.global <> 0 and m.global <> p.global));
