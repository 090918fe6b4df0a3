-- tokens never fall at the resource
select w.stream || ': token ' || w.token || ' of ' || w.process || case
		when g.token is null and not w.undone then ' is of no grant'
		when w.accepted and w.token < w.highest then ' is accepted after ' || w.highest
		when not w.accepted and w.token >= w.highest then ' is refused after ' || w.highest
		else ' is there before it was granted'
	end as finding
from (
	select w.*, exists (select 1 from undone u where u.stream = w.stream and u.token = w.token) as undone,
		coalesce(max(case when w.accepted then w.token end) over (partition by w.stream order by w.op rows between unbounded preceding and 1 preceding), 0) as highest
	from writes w
	where w.stream not in (select stream from strayed)
) w left join leases g on g.stream = w.stream and g.token = w.token, limits x
where g.token is null and not w.undone or w.accepted and w.token < w.highest or not w.accepted and w.token >= w.highest or w.accepted and not x.moved and g.at > w.at;
