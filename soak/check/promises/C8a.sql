-- after the last fault all becomes quiet
-- No consumer lags, each client's store is usable, and no goroutine is left.
select 'consumer ' || name || ' had ' || n || ' messages before it' as finding from facts where what = 'lag' and n <> 0
union all
select name || ' could not be used in the end' from facts where what = 'usable' and not n
union all
select f.name || ' ended when there were no more faults, and could not use the store' from facts f
where f.what = 'lasted' and not exists (select 1 from calls c where c.process = f.name and c.call = 'end' and c.told ->> 'usable')
union all
select process || ' had ' || (told ->> 'left') || ' goroutines more when it had ended all than before it did anything' from calls where call = 'end' and told ->> 'left' > 0
union all
select 'after the last fault it became quiet in ' || (c.ended - c.at) / 1000000 || ' s' from calls c, limits x where c.call = 'drain' and c.answer = 'ok' and c.ended - c.at > x.heal
union all
select 'after the last fault it never became quiet' from calls c where c.call = 'drain' and c.answer <> 'ok';
