-- a step follows the one before
select stream || '@' || position || ' ' || type || ': ' || finding as finding from breaches where rule = 'L3a' and stream not in (select stream from strayed);
