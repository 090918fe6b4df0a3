-- what was acknowledged is there
-- A failover to an asynchronous standby, or to a backup, may lose what was acknowledged after that had ceased to follow,
-- beyond the category's end on the new primary.
select 'message ' || s.id || ' of ' || p.stream || ' was acknowledged by ' || p.name || ', and is not there' as finding
from sent s join parts p on p.rowid = s.p
where p.outcome = 'yes' and s.message is null and not exists (select 1 from undone u where u.s = s.rowid);
