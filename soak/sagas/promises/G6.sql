-- steps are undone in reverse, each once
select 'saga ' || saga || ', ' || type || ' at ' || n || ': ' || finding as finding from wrong where rule = 'G6'
union all
select 'saga ' || c.saga || ': ' || c.process || ' had ' || c.step || ' undone, and the saga is not undone then'
from called c join sagas s on s.saga = c.saga join steps o on o.saga = c.saga and o.step = c.step left join story k on k.saga = c.saga and k.n = s.compensating
where c.call = 'undo' and not c.tx and s.end is not null and (k.at is null or k.at > c.at)
union all
select 'saga ' || c.saga || ': ' || c.process || ' had ' || c.step || ' undone before ' || l.step || ', which began later'
from called c join sagas s on s.saga = c.saga join steps o on o.saga = c.saga and o.step = c.step join steps l on l.saga = c.saga and l.began > o.began
where c.call = 'undo' and not c.tx and s.end is not null and (l.undone is null or l.undone > c.at);
