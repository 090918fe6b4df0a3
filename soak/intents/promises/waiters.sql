-- the line keeps its order
select stream || '@' || position || ' ' || type || ': ' || finding as finding from breaches where rule = 'waiters' and stream not in (select stream from strayed);
