-- nothing is lost
select what || ' is of position ' || position || ', where nothing ever was' as finding
from (
	select 'a row' as what, position from rows union select 'a line', position from log union select 'an effect', position from effects
	union select 'a delivery', position from given union select 'an end', position from ends union select 'a completion', position from handled
)
where position not in (select position from messages)
union all
select id || ' is there ' || count(*) || ' times' from messages group by id having count(*) > 1
union all
select id || ', at ' || position || ', was inserted by nobody' from items where id not in (select id from sent)
union all
select case
		when s.answer = 'ok' and i.id is null then s.id || ' of ' || s.stream || ' was inserted by ' || s.process || ', and is not there'
		when s.answer = 'ok' then s.id || ' was inserted into ' || s.stream || ', and is in ' || i.stream
		else s.id || ' was not inserted by ' || s.process || ' (' || s.answer || '), and is there'
	end
from sent s left join items i on i.id = s.id
where s.call <> 'stage' and s.had = 0
	and (s.answer = 'ok' and (i.id is null or i.stream <> s.stream) or s.answer in ('undone', 'failed', 'reused') and i.id is not null and s.note = '')
union all
select 'item ' || i.position || ' was given as ' || g.id || ' of ' || g.stream || ', and is ' || i.id || ' of ' || i.stream
from given g join items i on i.position = g.position
where g.id <> i.id or g.stream <> i.stream
union all
-- A completion under the last version may have no answer, or none that is known.
select 'item ' || i.position || ' of ' || i.stream || ' is finished, and was never completed'
from items i
where i.state is null and not i.ended and i.position <= (select cursor from head)
	and not exists (select 1 from items h, limits x where h.stream = x.hot)
	and not exists (select 1 from accepted a where a.position = i.position)
	and not exists (select 1 from ends e where e.position = i.position and e.kind = 'c' and e.version = i.lines and e.answer <> 'ok');
