-- the effect of a key is in the store once
-- One that a failover undid while it was in flight may be there too.
select 'key ' || key || ' has its effect in the store ' || effects || ' times' as finding from keys where reserved = 1 and effects > 1 + in_hand
union all
select 'key ' || key || ' has an effect in the store, and nothing is reserved' from keys where reserved = 0 and not told and not acknowledged and effects > in_hand
union all
select 'key ' || m.effect || ' has an effect, and no command tried to reserve it' from messages m where m.effect <> '' and not exists (select 1 from keys k where k.key = m.effect);
