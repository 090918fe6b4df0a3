-- a member joins by itself, as one process, and writes no more once it was removed
select g.name || ', state ' || s.n || ': ' || s.member || ' adds another member, ' || m.id as finding
from states s join groups g on g.g = s.g join members m on m.g = s.g and m.n = s.n
where s.member <> '' and m.id <> s.member and not exists (select 1 from members b where b.g = s.g and b.n = s.n - 1 and b.id = m.id)
union all
select g.name || ', state ' || s.n || ': ' || s.member || ' wrote it, which was in the group no more'
from states s join groups g on g.g = s.g
where s.member <> '' and not s.newcomer and exists (
	select 1 from removals l where l.g = s.g and l.id = s.member and l.n < s.n and l.n >= (select max(p.n) from states p where p.g = s.g and p.member = s.member and p.n < s.n))
union all
select g.name || ', state ' || s.n || ': ' || s.ran_process || ' and ' || s.process || ' write as one member'
from states s join groups g on g.g = s.g where s.member <> '' and not s.newcomer and s.ran_process <> s.process;
