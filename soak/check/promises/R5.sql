-- only an equal command is a duplicate, and it is one
select 'key ' || o.key || ' was reserved, and message ' || o.source || ', which asks for something else, was told that it is a duplicate' as finding from others o where o.taken
union all
select 'key ' || k.key || ' was reserved by an equal command, and ' || a.name || ' was told that it is used for something else'
from keys k join tries a on a.key = k.key where k.reserved = 1 and a.value = k.winner and a.answer = 'reused';
