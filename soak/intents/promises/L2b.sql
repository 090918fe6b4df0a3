-- an answer is of a moment of its call
select a.call || ' ' || a.stream || ' of ' || a.session || ' by ' || a.process || ': ' || w.finding as finding
from answers w join seen a on a.process = w.process and a.op = w.op
where w.rule = 'L2b' and not a.lossy
union all
select g.stream || ': token ' || g.token || ' was granted to ' || g.session || ', and no call may have done that'
from leases g, limits x
where g.stream not in (select stream from strayed) and not exists (
	select 1 from asks a join keys k on k.process = a.process and k.op = a.op
	where a.session = g.session and a.call = 'reserve' and k.stream = g.stream and (
		a.answer in ('reserved', 'unknown', 'lost', '') -- lost: before its work began
		or x.served and a.at <= g.at and g.free <= a.ended -- the answer was lost, and when the call was sent again the lease was over
	)
)
union all
select g.stream || ': ' || g.by || ' released token ' || g.token || ', and no call may have done that'
from leases g, limits x -- to one that serves the store, all are operators
where g.by is not null and g.stream not in (select stream from strayed)
	and not exists (select 1 from asks a where a.call = 'force' and a.stream = g.stream and (a.process = g.by or x.served) and a.answer in ('ok', 'unknown', ''));
