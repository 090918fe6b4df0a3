-- no key waits behind the items of another
select 'item ' || position || ' of ' || stream || ' was not given for ' || ((until - asked) / 1000) || ' ms, behind the items of another key' as finding
from (
	select i.*, min(coalesce((select min(g.ended) from given g where g.position = i.position), x.never), (select max(c.at) from calls c)) as until
	from items i, limits x
	where i.stream <> x.hot and not i.ended and exists (select 1 from items h where h.stream = x.hot)
)
where until - asked > (select reaches from limits);
