-- an effect is there with its completion
select 'item ' || position || ' has ' || count(*) || ' effects' as finding from effects group by position having count(*) > 1
union all
select case
		when f.answer = 'ok' then 'the completion of item ' || f.position || ' at version ' || f.version || ' was committed, and its effect is not there'
		when f.committed then 'the completion of item ' || f.position || ' at version ' || f.version || ' was not committed (' || f.answer || '), and its effect is there'
		else 'the completion of item ' || f.position || ' at version ' || f.version || ' was rolled back, and the item is completed'
	end
from (
	select h.*, exists (select 1 from effects x where x.position = h.position and x.version = h.version) as committed, count(*) over (partition by h.position) as times
	from handled h
	where h.call = 'finish'
) f
where f.answer = 'ok' and not f.committed
	or f.answer in ('undone', 'lost') and f.committed and f.times = 1
	-- the caller of one that was rolled back gave the item back, or left it
	or f.answer = 'undone' and not f.committed and exists (select 1 from accepted a where a.position = f.position and a.version = f.version)
union all
select 'the completion of item ' || e.position || ' at version ' || e.version || ' was told committed, and its effect is not there'
from ends e
where e.kind = 't' and e.told = 'd' and not exists (select 1 from effects x where x.position = e.position and x.version = e.version);
