-- a message is there as it was sent
select p.name || ' sent message ' || s.id || ' with another content than it has' as finding
from sent s join parts p on p.rowid = s.p join messages m on m.rowid = s.message
where p.call <> 'resolve' and p.outcome = 'yes' and not exists (select 1 from undone u where u.s = s.rowid) and (m.value <> s.value or m.hash <> s.hash)
union all
select p.name || ' sent message ' || w.id || ' with another content, or to another stream, than it has'
from written w join parts p on p.rowid = w.p
where not w.sure and not w.same
union all
select p.name || ' was found to have written message ' || c.id || ', and another is there'
from claims x join sent c on c.rowid = x.s join parts p on p.rowid = x.p join found f on f.o = x.o and f.answer = 'written'
where not x.sure and not x.same and not exists (select 1 from failovers);
