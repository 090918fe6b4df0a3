-- what is acknowledged has its effect
select 'key ' || key || ' was acknowledged, and has no effect in the store' as finding from keys where reserved = 1 and acknowledged and effects = 0
union all
select 'key ' || key || ' was acknowledged, and has no effect outside the store' from keys
where reserved = 1 and acknowledged and effects > 0 and outside = 0 and exists (select 1 from calls where call = 'effect');
