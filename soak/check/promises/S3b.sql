-- a position of a stream is one message's
select stream || '@' || position || ' is of ' || group_concat(id, ' and ') as finding from messages group by stream, position having count(*) > 1;
