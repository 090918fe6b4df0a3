-- an id that is said to be taken is
select p.name || ' was told that an id of it is taken, and none is there' as finding
from parts p join sent s on s.p = p.rowid
where p.call <> 'resolve' and p.answer = 'id-conflict' and not exists (select 1 from failovers)
group by p.o having count(s.message) = 0;
