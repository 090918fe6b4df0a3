-- tokens rise past the lost ones
select distinct k.stream || ': token ' || k.token || ' is granted after ' || u.token || ', which is lost' as finding
from asks a join keys k on k.process = a.process and k.op = a.op
	join undone u on u.stream = k.stream
	join losses l on u.token between l.since and l.until and l.until < a.at
where a.call = 'reserve' and a.answer = 'reserved' and k.token <= u.token;
