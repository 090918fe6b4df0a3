-- no time of a saga comes early
select 'saga ' || saga || ', ' || type || ' at ' || n || ': ' || finding as finding from wrong where rule = 'G10';
