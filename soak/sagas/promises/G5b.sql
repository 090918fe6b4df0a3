-- the reply counts that is to the attempt that waits
select 'saga ' || saga || ', ' || type || ' at ' || n || ': ' || finding as finding from wrong where rule = 'G5b';
