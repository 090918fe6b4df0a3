-- what is lost is not made longer
select a.process || ' was told that its delivery of item ' || a.position || ' goes on at version ' || a.version || ', which had ended' as finding
from asks a, limits x
where a.call = 'prolong' and a.answer = 'ok' and (
	exists (select 1 from lines l where l.position = a.position and l.n = a.version and l.at + x.slack < a.at)
	or exists (select 1 from ends e where e.position = a.position and e.version = a.version and e.told = 'd' and e.answer = 'ok' and e.ended + x.slack < a.at)
);
