-- a unique name is of one item at a time, and free again
with again as ( -- an item whose name another had; it was inserted at a moment of its call, and before it was given
	select s.until, s.at - x.slack as since, min(s.ended, coalesce((select min(g.ended) from given g where g.position = i.position), x.never)) + x.slack as last, i.position, i.stream, i.before
	from sent s join items i on i.id = s.id, limits x
	where s.call = 'unique' and i.before is not null
), outs as materialized ( -- a span beyond which a delivery of the other was not out; one never heard of may have been out as soon as the one before had ended
	select a.position, a.since, a.last,
		case
			when g.at is not null then g.at
			when v.value = 0 then b.asked
			else (select l.at from lines l where l.position = b.position and l.n = v.value - 1)
		end as out,
		case -- all saw that it had ended; its line has the time before its transaction was committed
			when v.value < b.lines then coalesce(
				(select e.ended from ends e where e.position = b.position and e.version = v.value and e.told = 'd' and e.ended <> x.never order by e.at limit 1),
				(select l.at + x.met from lines l where l.position = b.position and l.n = v.value))
			when g.at is null and b.state <> 'o' then 0
			else x.never
		end as back
	from again a
		join items b on b.position = a.before
		join (select position, n as value from lines union all select position, lines from items) v on v.position = b.position
		left join (select position, version, max(at) as at from given group by position, version) g on g.position = b.position and g.version = v.value,
		limits x
	where a.until = 'delivered'
)
select 'item ' || a.position || ' of ' || a.stream || ' was inserted while item ' || a.before || ' had the name (' || a.until || ')' as finding
from again a join closed c on c.position = a.before
where a.until = 'forgotten' or min(c.at, c.cancelled) > a.last
	and not exists (select 1 from outs o where o.position = a.position and o.since = a.since and o.out <= o.last and o.back >= o.since)
union all
select case
		when i.position is null or i.stream <> s.stream then s.process || ' was told that item ' || s.had || ' has the name of ' || s.stream
		else s.process || ' sent ' || s.n || ' to ' || s.stream || ', was told ' || s.answer || ', and item ' || s.had || ' has ' || i.n
	end
from sent s left join items i on i.position = s.had
where s.call = 'unique' and s.had > 0 and (i.position is null or i.stream <> s.stream or (s.answer = 'reused') = (i.n = s.n))
union all
-- It was free all the time of the call: finished, or dead, or out.
select s.process || ' was told that item ' || s.had || ' has the name of ' || s.stream || ', which was free (' || s.until || ')'
from sent s join items i on i.position = s.had and i.stream = s.stream, limits x
where s.call = 'unique' and s.until <> 'forgotten' and (
	exists (
		select 1 from ends e
		where e.position = i.position and e.told = 'd' and e.answer = 'ok' and e.ended + x.slack < s.at
			and (e.kind = 'c' or i.dead and not i.redriven and e.version = i.lines - 1)
	)
	or exists (select 1 from handled f where f.call = 'finish' and f.position = i.position and f.answer = 'ok' and f.ended + x.slack < s.at)
	or s.until = 'delivered' and exists (
		select 1 from given g
		where g.position = i.position and g.ended + x.slack < s.at and s.ended + x.slack < min(
			coalesce((select l.at from lines l where l.position = i.position and l.n = g.version), x.never),
			coalesce((select min(e.at) from ends e where e.position = i.position and e.version = g.version), x.never),
			coalesce((select min(f.at) from handled f where f.call = 'finish' and f.position = i.position and f.version = g.version), x.never)
		)
	)
);
