-- a key is reserved once
select 'key ' || key || ' was reserved ' || reserved || ' times' as finding from keys where reserved > 1;
