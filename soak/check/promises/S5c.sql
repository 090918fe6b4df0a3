-- at most one writer of an id is told that it was the first
select 'message ' || s.id || ': ' || group_concat(p.name, ', ') || ' were told that they were the first' as finding
from claims c join sent s on s.rowid = c.s join parts p on p.rowid = c.p
where c.sure
group by c.message having count(*) > 1;
