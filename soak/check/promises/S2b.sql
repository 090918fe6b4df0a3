-- a write is in its order, with nothing in between
select p.name || ': two messages that were written one after the other are ' || a.stream || '@' || a.position || ' and ' || b.stream || '@' || b.position as finding
from batches x join parts p on p.o = x.o join sent s on s.p = p.rowid join sent t on t.p = s.p and t.n = s.n + 1
	join messages a on a.rowid = s.message join messages b on b.rowid = t.message
where x.there = x.messages and (a.stream <> b.stream or b.position <> a.position + 1);
