-- checkpoints do not go back
with epochs as (
	select p.*, (select count(*) from failovers f where f.ended <= p.at) as epoch from puts p join groups g on g.g = p.g where g.alone and p.answer = 'ok'
), moments as (
	select g, epoch, name, at as moment, 0 as over, position, null as high from epochs
	union all
	select g, epoch, name, ended, 1, null, position from epochs
), latest as (
	select *, max(high) over (partition by g, epoch order by moment, over rows unbounded preceding) as highest from moments
)
select g.name || ', ' || l.name || ': checkpoint ' || l.position || ' after ' || l.highest as finding from latest l join groups g on g.g = l.g where not l.over and l.highest > l.position
union all
select g.name || ', state ' || m.n || ': slot ' || m.slot || ' is at ' || m.position || ', after ' || m.before from moves m join groups g on g.g = m.g where m.position < m.before
union all
select g.name || ', state ' || s.n || ': its position is ' || s.lowest || ', and the lowest of its slots is ' || min(b.position)
from states s join groups g on g.g = s.g join spots b on b.g = s.g and b.n = s.n and b.parts > 0
group by s.g, s.n having min(b.position) <> s.lowest;
