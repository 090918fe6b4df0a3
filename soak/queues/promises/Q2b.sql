-- a delivery is given once
select 'item ' || a.position || ' was given under version ' || a.version || ' to sessions ' || a.session || ' and ' || b.session as finding
from given a join given b on b.position = a.position and b.version = a.version and b.rowid > a.rowid
-- but to a later attempt at the same call
where not exists (select 1 from resumed r where r.session = a.session and r.earlier = b.session or r.session = b.session and r.earlier = a.session);
