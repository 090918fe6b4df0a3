-- a cancel and a deadline are heeded
select 'saga ' || saga || ', ' || type || ' at ' || n || ': ' || finding as finding from wrong where rule = 'G8a'
union all
select 'saga ' || l.saga || ' has its ' || l.type || ' ' || (l.took / 1000) || ' ms behind its deadline'
from lates l join sagas s on s.saga = l.saga, patience p
where l.what = 'deadline' and l.took > p.us + l.explained and l.n is not s.pivot and not exists ( -- the pivot came in time
	select 1 from lates b where b.saga = l.saga and b.what = 'deadline' and b.n = s.pivot and b.took <= p.us + coalesce(b.explained, 0)
);
