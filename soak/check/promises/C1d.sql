-- a checkpoint is not beyond what its consumer had read, or another had stored
with stored as (
	select p.*, max(case when p.answer in ('ok', 'unknown', '') then p.position end) over (partition by p.g order by p.at, p.rowid rows between unbounded preceding and 1 preceding) as before, p.rowid as put from puts p
)
select g.name || ', ' || s.name || ': checkpoint ' || s.position || ', and no answer was beyond ' || max(coalesce(s.before, 0), k.upto) as finding
from stored s join groups g on g.g = s.g join known k on k.put = s.put
where g.alone and s.answer in ('ok', 'unknown', '') and s.position > max(coalesce(s.before, 0), k.upto)
union all
select g.name || ', state ' || m.n || ', ' || s.name || ': slot ' || m.slot || ' is at ' || m.position || ', and no answer was beyond that'
from moves m join states s on s.g = m.g and s.n = m.n join groups g on g.g = m.g join known k on k.put = s.put
where m.position > m.before and m.position > max(k.upto, coalesce((select max(b.position) from spots b where b.g = m.g and b.n = m.n - 1 and b.holder = s.member), 0));
