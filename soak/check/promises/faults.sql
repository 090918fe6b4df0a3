-- a fault that was there several times shows, in the log of the server or by what it did
with several as (
	select name, count(*) as n from faults group by name having count(*) >= 3
), states (name, state) as (
	values ('sync-error', '58030'), ('disk-full', '53100'), ('connections', '53300'), ('deadlock', '40P01')
)
select 'there was ' || f.name || ' ' || f.n || ' times, and the server''s log has no error ' || s.state as finding
from several f join states s on s.name = f.name where not exists (select 1 from facts l where l.what = 'log' and substr(l.name, 1, 5) = s.state)
union all
select 'there was ' || f.name || ' ' || f.n || ' times, and it was never done' from several f
where f.name in ('migrate', 'release', 'raise-epoch', 'reindex', 'cut', 'lose', 'hold', 'drip') and not exists (select 1 from calls c where c.call = 'did' and c.asked ->> 'name' = f.name);
