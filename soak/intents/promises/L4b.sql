-- rows are those of the confirmations
select r.stream || ': a row has ' || r.result || ' of token ' || r.token || ', which is not confirmed' as finding
from rows r
where r.stream not in (select stream from strayed) and not exists (select 1 from done d where d.stream = r.stream and d.token = r.token and d.result = r.result)
union all
select stream || ': ' || result || ' of token ' || token || ' has ' || count(*) || ' rows'
from rows
where stream not in (select stream from strayed)
group by stream, token, result
having count(*) > 1
union all
select d.stream || ': ' || d.result || ' of token ' || d.token || ' was confirmed in a transaction, and has no row'
from done d
where d.stream not in (select stream from strayed)
	and exists (select 1 from asks a where a.call = 'transact' and a.stream = d.stream and a.token = d.token and a.wanted = d.result)
	and not exists (select 1 from rows r where r.stream = d.stream and r.token = d.token and r.result = d.result);
