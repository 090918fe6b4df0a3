-- a key is reserved by a command that asked for it
select 'key ' || k.key || ' was reserved by a command that was never sent' as finding from keys k
where k.reserved = 1 and not exists (select 1 from tries a where a.key = k.key and a.value = k.winner);
