-- a lost lease is lost
select a.call || ' ' || a.stream || ' of ' || a.session || ' by ' || a.process || ': ' || w.finding as finding
from answers w join seen a on a.process = w.process and a.op = w.op
where w.rule = 'L3b' and not a.lossy;
