-- each state of a group has every slot once, and members hold them
select g.name || ', state ' || b.n || ': slot ' || b.slot || ' is there ' || b.parts || ' times' as finding from spots b join groups g on g.g = b.g where b.n > 0 and b.parts <> 1
union all
select distinct g.name || ', state ' || b.n || ': ' || b.holder || ' holds slots and is no member'
from spots b join groups g on g.g = b.g where b.holder <> '' and b.n > 0 and not exists (select 1 from members m where m.g = b.g and m.n = b.n and m.id = b.holder);
