-- a late completion is refused
select 'the completion of item ' || a.position || ' at version ' || a.version || ' was accepted, and its log says ' || l.what || ' of that' as finding
from accepted a join lines l on l.position = a.position and l.n = a.version
union all
select h.process || ' was told that item ' || h.position || ' is completed at version ' || h.version || ', and the store told no such thing'
from handled h
where h.call = 'complete' and h.answer = 'ok' and not exists (select 1 from accepted a where a.position = h.position and a.version = h.version)
union all
-- A handler whose session is over for its process is told lost without a question to the store.
select h.process || ' was told that item ' || h.position || ' is lost at version ' || h.version || ', and it was completed at that'
from handled h join accepted a on a.position = h.position and a.version = h.version join items i on i.position = h.position
where h.call = 'complete' and h.answer = 'lost' and (not i.gone or h.version > 0)
	and exists (select 1 from ends e where e.position = h.position and e.version = h.version and e.told = 'l');
