-- a saga goes on when its message or its time comes
select 'saga ' || l.saga || ' could go on, and has its next record, ' || l.type || ', after ' || (l.took / 1000) || ' ms, of which faults explain ' || (l.explained / 1000) as finding
from lates l, patience p
where l.what = 'woken' and l.took > p.us + l.explained;
