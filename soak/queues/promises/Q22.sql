-- what nobody was told of is given back, or given to the repeated call
-- A call that lasts until then, or ended while the answer was on its way, has no more of it.
select 'item ' || g.position || ' was out at version ' || g.version || ' until its time had passed, and ' || r.process || ', for which it was taken, was told ' || r.answer || ' ' || ((r.ended - g.at) / 1000) || ' ms after that' as finding
from lines l join given g on g.position = l.position and g.version = l.n join received r on r.lease = g.lease and r.at <= g.ended and r.ended > g.at - x.apart, limits x
where l.what = 'e'
	and not exists (select 1 from told t where t.position = g.position and t.version = g.version)
	and g.ended < g.at + g.lease and r.ended < g.at + g.lease
	and not (r.answer <> 'ok' and r.ended + x.hang_up > g.at)
	-- It was not given back in time, on a machine that is busy.
	and not exists (select 1 from ends e where e.position = g.position and e.version = g.version and e.at < g.at + g.lease)
	and not exists (select 1 from calls b where b.call = 'leave' and b.asked ->> 'session' = g.session and b.at < g.at + g.lease)
	-- Whoever took it could give it back.
	and not exists (
		select 1 from calls n
		where n.process = 'nemesis' and n.call in ('kill', 'stop', 'cut') and n.asked ->> 'target' in (g.process, 'server', 'soak.db')
			and n.at <= g.at + g.lease and case when n.asked ->> 'target' = 'soak.db' then n.at + x.locked when n.ended = x.never then n.at else n.ended end >= min(r.ended, g.at)
	)
union all
select 'item ' || g.position || ' was given at version ' || g.version || ' to an earlier attempt at a call, which was given item ' || n.position || ' and not that'
from given g join given n on n.lease = g.lease and n.session <> g.session and n.at > g.ended and n.ended < g.at + g.lease
	join told t on t.position = n.position and t.version = n.version
where not exists (select 1 from given m where m.position = g.position and m.version = g.version and m.session = n.session)
	and not exists (select 1 from lines l where l.position = g.position and l.n = g.version and l.at <= n.ended)
	and not exists (select 1 from ends e where e.position = g.position and e.version = g.version and e.at <= n.ended);
