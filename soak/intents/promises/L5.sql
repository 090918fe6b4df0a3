-- a confirmation stands
select stream || '@' || position || ' ' || type || ': ' || finding as finding from breaches where rule = 'L5' and stream not in (select stream from strayed)
union all
select a.call || ' ' || a.stream || ' of ' || a.session || ' by ' || a.process || ': ' || w.finding as finding
from answers w join seen a on a.process = w.process and a.op = w.op
where w.rule = 'L5' and not a.lossy
union all
select s.session || ' of ' || s.process || ': ' || s.stream || ' was told done before'
from steps s join (
	select a.about, min(a.ended) as at from asks a
	where a.call = 'reserve' and a.answer = 'done' and not exists (select 1 from losses l where l.since <= a.ended and a.at <= l.until)
	group by a.about
) t on t.about = s.stream
where s.call = 'reserve' and not s.undone and s.holder = s.session and t.at < s.at
union all
select d.stream || ': ' || d.result || ' with token ' || d.token || ' is confirmed, and no call may have done that'
from done d
where d.stream not in (select stream from strayed) and not exists (
	select 1 from keys k join asks a on a.process = k.process and a.op = k.op
	where k.stream = d.stream and k.token = d.token and a.call in ('confirm', 'transact') and a.wanted = d.result and a.answer in ('ok', 'unknown', '')
);
