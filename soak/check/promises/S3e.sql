-- a write is done at the version that it expected
select p.name || ' expected version ' || p.expected || ' of ' || p.stream || ', and was done at ' || (w.position - 1) as finding
from written w join sent s on s.rowid = w.s join parts p on p.rowid = s.p
where w.recorded and s.n = 0 and p.expected <> -2 and p.expected <> w.position - 1;
