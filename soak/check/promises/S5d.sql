-- a duplicate is one of something
select 'message ' || w.id || ' was said to be a duplicate, and no writer can have written it before' as finding from written w where w.recorded and w.p is null and w.told;
