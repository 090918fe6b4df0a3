-- tokens rise, attempts count up
select stream || '@' || position || ' ' || type || ': ' || finding as finding from breaches where rule = 'L1' and stream not in (select stream from strayed);
