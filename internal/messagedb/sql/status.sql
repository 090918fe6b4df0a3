select s.state, s.version, s.started_at, s.found, s.frontier, s.messages, s.last_position, s.switched_at, s.undone_at,
  (select count(*) from dibs_adoption.ranges r where r.messages is null),
  (select coalesce(sum(r.messages), 0)::bigint from dibs_adoption.ranges r),
  (select count(*) from dibs_adoption.indexes i where to_regclass(format('dibs.%I', i.name)) is null),
  to_regclass('message_store_before_dibs.messages') is not null
from dibs_adoption.state s
