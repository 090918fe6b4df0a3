-- a member that frees slots in order, or leaves, has stored how far it was
with frees as materialized (
	select s.*, (select min(t.global) from spots b join spots now on now.g = b.g and now.n = s.n and now.slot = b.slot
			join upto t on t.g = b.g and t.slot = b.slot and t.global >= now.position
			where b.g = s.g and b.n = s.n - 1 and b.holder = s.member) as next
	from states s
	where s.r is not null and s.member <> '' and exists (select 1 from moves m where m.g = s.g and m.n = s.n and m.was = s.member and m.is_now = '')
		and not exists ( -- a store, or a process, that did not work for a time
			select 1 from faults f, limits x where f.at < s.at and f.ended >= s.at - x.broken and f.name not in ('join-leave', 'kill-member') and (f.name <> 'stop-member' or f.target = s.process))
)
select g.name || ', state ' || f.n || ', ' || f.name || ': ' || f.member || ' gave up its slots without the message at ' || f.next || ', which it had handled, so it comes again' as finding
from frees f join groups g on g.g = f.g
where exists (select 1 from met m cross join handed d on d.g = m.g and d.message = m.message where m.g = f.g and m.global = f.next and d.r = f.ran and d.call = 'handle' and d.answer = 'ok' and d.ended < f.at);
