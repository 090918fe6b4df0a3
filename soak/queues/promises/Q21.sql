-- what was received ends as was asked for
select 'item ' || e.position || ' was ended (' || e.kind || ') at version ' || e.version || ', and nobody who received it asked for that' as finding
from ends e join given g on g.position = e.position and g.version = e.version join received r on r.lease = g.lease and r.at <= g.ended and r.ended > g.at - x.apart, limits x
where e.kind in ('c', 'r', 'f', 'x')
	-- what its caller has not come to know of, a client gives back
	and not (e.kind = 'f' and not exists (select 1 from told t where t.position = e.position and t.version = e.version))
	and not exists (select 1 from asks a where a.position = e.position and a.version = e.version and a.kind = e.kind and a.at <= e.ended)
group by e.position, e.version, e.kind;
