-- several keys are had together
with own as ( -- how many messages a session has in a stream, but of the line and of operators
	select stream, session, count(*) as n from parsed where type <> 'Waiting' and by = '' group by stream, session
), wanted as (
	select distinct a.session, k.stream from seen a join keys k on k.process = a.process and k.op = a.op where a.call = 'reserve'
)
select w.session || ' has between ' || min(coalesce(o.n, 0)) || ' and ' || max(coalesce(o.n, 0)) || ' messages in ' || group_concat(w.stream, ', ') as finding
from wanted w left join own o on o.stream = w.stream and o.session = w.session
group by w.session
having min(coalesce(o.n, 0)) <> max(coalesce(o.n, 0));
