-- what was read or delivered is there
-- A failover may have undone it since; who had read it before may still handle it, until it is told.
with seen as (
	select c.process || ':' || c.op as name, cast(m.value ->> 'id' as text) as id, cast(a.value ->> 'stream' as text) as stream, coalesce(m.value ->> 'position', 0) as position,
		coalesce(m.value ->> 'global', 0) as global, coalesce(m.value ->> 'value', 0) as value, coalesce(m.value ->> 'hash', 0) as hash, c.at
	from calls c, json_each(c.told, '$.appends') a, json_each(a.value, '$.messages') m where c.call = 'read'
	union all
	select d.name, d.id, d.stream, d.position, d.global, d.value, d.hash, coalesce(r.at, d.at) from deliveries d left join runs r on r.process = d.process and r.op = d.run
), wrong as (
	select s.*, substr(s.stream, 1, instr(s.stream || '-', '-') - 1) as category, m.global as there, m.position as place,
		case
			when m.id is null then 'it is not there'
			when m.stream <> s.stream then 'it is in ' || m.stream
			when m.position <> s.position or m.global <> s.global then 'it is at ' || m.position || ', and at ' || m.global || ' of all'
			else 'its content is another'
		end as what
	from seen s left join messages m on m.rowid = (select t.rowid from messages t where t.id = s.id order by t.global limit 1)
	where m.id is null or m.stream <> s.stream or m.position <> s.position or m.global <> s.global or m.value <> s.value or m.hash <> s.hash
)
select name || ' saw message ' || id || ' as ' || stream || '@' || position || ', at ' || global || ' of all, and ' || what as finding
from wrong x
where (there is global and place is position) or not exists (
	select 1 from kept k
	where k.category = x.category and x.global > k.head and x.at < k.ended and not (x.there is not null and x.there <= k.head) and (
		x.category in (select category from unrecorded)
		or exists (select 1 from sent s join parts p on p.rowid = s.p where s.id = x.id and p.call <> 'resolve' and p.outcome <> 'no' and p.at < k.ended)));
