-- a timer rings once where no fault fell
select 'timer ' || id || ' is set ' || count(*) || ' times' as finding from messages where category = 'ring' group by id having count(*) > 1
union all
select 'timer ' || r.id || ' rang in ' || r.process_before || ', and again in ' || r.process || ' after ' || ((r.at - r.before) / 1000) || ' ms, and no fault fell'
from rings r join messages m on m.id = r.id and m.category = 'ring', limits x
where r.again > 0
	-- nor did the machine stand for longer than a lease
	and not (r.again <= (select count(*) from turns t where t.stream = m.stream) and r.at > r.before + x.lease / 2)
	and not exists (
		select 1 from faults f
		where f.since < r.at and f.until > r.before - 2 * x.lease and (f.what in ('outage', 'jump') or f.process in (r.process, r.process_before))
	);
