-- no work is begun after its lease
-- Its holder must have known of a sign of life that was not over by then, less the margin. Between the look and the
-- beginning its process may be stopped, and its context ends when it wakes: such work may begin late.
with work as (
	select a.*, x.ttl, x.margin - x.drift as margin, coalesce((select max(s.at) from signs s where s.stream = g.stream and s.lease = g.lease and s.at <= a.ended), 0) as sign, x.waking
	from seen a join leases g on g.stream = a.stream and g.token = a.token, limits x
	where a.call = 'work' and a.answer = 'ok' and not x.moved and not a.lossy and not exists (select 1 from losses l where l.since <= a.ended and a.at - 2 * x.ttl <= l.until)
)
select stream || ' of ' || session || ' by ' || process || ': work ' || ((at - sign - ttl + margin) / 1000) || ' ms after its lease was to be left' as finding
from work
where note <> 'context' and at > sign + ttl - margin
union all
select stream || ' of ' || session || ' by ' || process || ': work ' || ((ended - sign - ttl) / 1000) || ' ms after its lease, and nothing was stopped'
from work w
where ended > sign + ttl and not exists (select 1 from stops s where s.process = w.process and s.since <= w.ended and w.sign - w.waking <= s.until);
