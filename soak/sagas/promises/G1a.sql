-- what is recorded is not done again
select 'saga ' || saga || ', ' || type || ' at ' || n || ': ' || finding as finding from wrong where rule = 'G1a'
union all
-- Each call of a step has a beginning of its own, by its process.
select 'saga ' || c.saga || ': ' || c.process || ' had ' || c.step || ' called, and has not begun it then'
from called c join sagas s on s.saga = c.saga join steps o on o.saga = c.saga and o.step = c.step
where c.call = 'do' and not c.tx and s.end is not null and (
	(select count(*) from called b where b.saga = c.saga and b.step = c.step and b.call = 'do' and not b.tx and b.process = c.process and b.at <= c.at)
		> (select count(*) from story m where m.saga = c.saga and m.type = 'Began' and m.step = c.step and m.at <= c.at and m.writer in (c.process, ''))
	or (select count(*) from called b where b.saga = c.saga and b.step = c.step and b.call = 'do' and not b.tx and b.at <= c.at)
		> (select count(*) from story m where m.saga = c.saga and m.type = 'Began' and m.step = c.step and m.at <= c.at)
)
union all
select 'saga ' || c.saga || ': ' || c.process || ' had ' || c.step || ' undone ' || ((c.at - o.undone) / 1000) || ' ms after that was recorded'
from called c join sagas s on s.saga = c.saga join steps o on o.saga = c.saga and o.step = c.step join story k on k.saga = c.saga and k.n = s.compensating, limits x
where c.call = 'undo' and not c.tx and s.end is not null and k.at <= c.at and o.undone is not null and c.at > o.undone + x.lease + (
	select coalesce(sum(max(0, min(f.until, c.at) - max(f.since, k.at))), 0) from faults f where f.what = 'stop' and f.process = c.process
);
