-- an id is one message's
select 'message ' || id || ' is there as ' || group_concat(stream || '@' || position, ' and ') as finding from messages group by id having count(*) > 1;
