-- a consumer of which a failover undid nothing is not told that it is ahead
select g.name || ', ' || r.name || ' was told that it is ahead of the store, and nothing of it was undone' as finding
from runs r join groups g on g.g = r.g
where r.answer = 'ahead' and not exists (
	select 1 from failovers f join kept k on k.f = f.f and k.category = g.category
	where f.at <= r.ended and (
		exists (select 1 from pages p where p.g = r.g and p.at < f.ended and p.position > k.head + 1)
		or exists (select 1 from handed d join runs l on l.rowid = d.r where d.g = r.g and l.at < f.ended and d.global > k.head)
		-- The checkpoint itself may have been undone.
		or exists (select 1 from puts p where p.g = r.g and p.answer in ('ok', 'unknown', '') and p.ended > f.at and p.at < f.ended)));
