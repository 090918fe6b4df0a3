-- what is there was written by a caller that was not told the contrary
select 'message ' || w.id || ' is ' || w.stream || '@' || w.position || coalesce(', and was not written, as was told: ' || (
		select group_concat(p.name || ' ' || p.answer, ', ') from sent s join parts p on p.rowid = s.p where s.message = w.message), ', and no process wrote it') as finding
from written w
where w.recorded and w.p is null and not w.told
	and not exists (select 1 from messages m join written o on o.message = m.rowid where m.id = w.id and (o.p is not null or o.told)); -- another with its id is S5g's
