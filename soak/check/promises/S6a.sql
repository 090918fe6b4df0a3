-- a global position is one message's
select 'global position ' || global || ' is of ' || group_concat(stream || '@' || position, ' and ') as finding from messages group by global having count(*) > 1;
