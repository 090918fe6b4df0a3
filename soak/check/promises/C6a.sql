-- a consumer that is beyond what a failover kept is told so, however far the store has grown since
select g.name || ', ' || r.name || ' was at position ' || b.position || ', ' || f.name || ' kept nothing after ' || b.head || ', and it was never told' as finding
from ahead b join runs r on r.rowid = b.r join groups g on g.g = r.g join failovers f on f.f = b.f where r.answer <> 'ahead';
