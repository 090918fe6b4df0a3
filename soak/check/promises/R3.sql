-- If a key comes again with another command, the sender gets an error: the command is not acknowledged
select 'key ' || o.key || ' was reserved, and message ' || o.source || ', which asks for something else, was never told so' as finding
from others o where not o.reused and not o.taken and not (exists (select 1 from failovers) and not exists (select 1 from messages m where m.id = o.source))
union all
select 'key ' || o.key || ' was reserved, and message ' || o.source || ', which asks for something else, was acknowledged'
from others o where not o.taken and exists (select 1 from acks c where c.key = o.key and c.source = o.source);
