-- a consumer whose work since a backup is undone begins again, though all that it had read is there
select g.name || ', ' || r.name || ' had handled messages since the backup of ' || f.name || ' was taken, which is undone, and it was never told' as finding
from begun_again b join runs r on r.rowid = b.r join groups g on g.g = r.g join failovers f on f.f = b.f where r.answer <> 'epoch';
