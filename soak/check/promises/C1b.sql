-- before a checkpoint is stored, every message before it is handled or given up on
with lossy as ( -- beyond what a failover kept the positions are others now
	select p.rowid as put, p.g, p.name, p.at, p.position, min(p.position, coalesce((select min(k.head) + 1 from kept k where k.category = g.category and k.ended > p.at), p.position)) as upto
	from puts p join groups g on g.g = p.g
	where g.alone and p.answer in ('ok', 'unknown', '')
)
select g.name || ', ' || l.name || ': checkpoint ' || l.position || ' was stored before all up to ' || u.global || ' was handled' as finding
from lossy l join groups g on g.g = l.g join upto u on u.rowid = (select v.rowid from upto v where v.g = l.g and v.global < l.upto order by v.global desc limit 1)
where u.done >= l.at;
