-- a repeated write is told its place, and is not refused
with refused as (
	select p.o, p.name, p.parts, count(*) as n, count(case when m.value = s.value and m.hash = s.hash and m.stream = p.stream and w.until < p.at and q.n = p.n and t.n = s.n then 1 end) as there,
		count(distinct q.rowid) as by_parts, count(distinct q.o) as writers, max(q.parts) as of_parts, max(q.name) as writer
	from parts p join sent s on s.p = p.rowid left join messages m on m.rowid = s.message left join written w on w.message = s.message left join parts q on q.rowid = w.p left join sent t on t.rowid = w.s
	where p.call <> 'resolve' and p.answer in ('conflict', 'id-conflict') and not exists (select 1 from failovers)
	group by p.o
)
select name || ' was refused, and ' || writer || ' had written the same' as finding from refused where there = n and writers = 1 and of_parts = parts and by_parts = parts;
