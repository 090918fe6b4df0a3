-- what is acknowledged is reserved
select 'key ' || key || ' was acknowledged, and nothing is reserved' as finding from keys where reserved = 0 and (told or acknowledged);
