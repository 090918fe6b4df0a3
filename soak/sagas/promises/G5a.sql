-- no step begins after an end, or in a process that is too late
select 'saga ' || saga || ', ' || type || ' at ' || n || ': ' || finding as finding from wrong where rule = 'G5a'
union all
select 'saga ' || c.saga || ': ' || c.process || ' had ' || c.step || ' called ' || ((c.at - e.at) / 1000) || ' ms after the end'
from called c join sagas s on s.saga = c.saga join story e on e.saga = c.saga and e.n = s.end, limits x, patience p
where c.tx and c.answer = 'ok' and c.at > e.at + x.lease + (
	select coalesce(sum(max(0, min(f.until, c.at) - max(f.since, e.at - p.us))), 0) from faults f where f.what = 'stop' and f.process = c.process
)
union all
select 'saga ' || c.saga || ': ' || c.process || ' had ' || c.step || ' called, which has not begun'
from called c join sagas s on s.saga = c.saga
where not c.tx and s.end is not null and not exists (select 1 from steps o where o.saga = c.saga and o.step = c.step)
union all
-- A process knows of the records of others as soon as it is not stopped, but not for longer than its lease lasts.
select 'saga ' || c.saga || ': ' || c.process || ' had ' || c.step || ' called ' || ((c.at - min(m.at)) / 1000) || ' ms after ' || m.writer || ' went on with ' || m.type
from called c join sagas s on s.saga = c.saga
	join story b on b.saga = c.saga and b.n = (
		select max(b.n) from story b where b.saga = c.saga and b.type = 'Began' and b.step = c.step and b.at <= c.at and b.writer in (c.process, '')
	)
	join story m on m.saga = c.saga and m.n > b.n and not m.outside and m.writer not in ('', c.process), limits x
where c.call = 'do' and not c.tx and s.end is not null and c.at > m.at + x.lease + (
	select coalesce(sum(max(0, min(f.until, c.at) - max(f.since, b.at))), 0) from faults f where f.what = 'stop' and f.process = c.process
)
group by c.process, c.op;
