-- nothing is given after its completion
select 'item ' || g.position || ' was completed at version ' || a.version || ', and given at ' || g.version as finding
from given g join accepted a on a.position = g.position
where g.version > a.version
union all
select 'item ' || g.position || ' was given at version ' || g.version || ' after it was told completed at ' || e.version
from given g join ends e on e.position = g.position and e.kind in ('c', 't') and e.told = 'd' and e.answer = 'ok'
where g.at > e.ended
union all
select 'item ' || l.position || ' has lines after it was ended by an operator at version ' || l.version
from lines l
where l.what in ('C', 'D', 'M') and exists (select 1 from lines m where m.position = l.position and m.n > l.n);
