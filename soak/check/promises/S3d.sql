-- a version that is told was the stream's
select s.name || ' was told that ' || s.stream || ' is at version ' || s.last || ', and it never was then' as finding
from steps s
where s.first is null and (
	not (s.last = -1 and s.epoch = 0)
		and not exists (select 1 from steps w where w.stream = s.stream and w.last = s.last and w.first is not null and (w.epoch = s.epoch or w.epoch < s.epoch and not w.lost))
		and not (s.last = -1 and not exists (select 1 from steps w where w.stream = s.stream and w.first is not null and w.epoch < s.epoch and not w.lost))
	or s.epoch > 0 and exists (select 1 from steps w where w.stream = s.stream and w.last > s.last and w.first > s.last and w.epoch < s.epoch and not w.lost)); -- what a failover kept is there after it
