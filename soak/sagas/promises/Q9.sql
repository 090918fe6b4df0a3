-- a timer rings at its time, not before
select 'timer ' || r.id || ' rang ' || ((m.due - r.at) / 1000) || ' ms before its time' as finding
from rings r join messages m on m.id = r.id and m.category = 'ring', limits x
where r.due <> m.due
	or r.at < m.due and not exists (select 1 from faults j where j.what = 'jump' and j.since <= r.at and r.at - x.lease <= j.until);
