-- no grant before the lease is over
select stream || '@' || position || ' ' || type || ': ' || finding as finding from breaches where rule = 'L2a' and stream not in (select stream from strayed);
