-- a member takes free slots for itself, and gives up its own
select g.name || ', state ' || m.n || ': ' || s.member || ' gave slot ' || m.slot || ' to ' || m.is_now as finding
from moves m join states s on s.g = m.g and s.n = m.n join groups g on g.g = m.g where m.is_now <> m.was and m.is_now <> '' and m.is_now <> s.member
union all
select g.name || ', state ' || m.n || ': ' || s.member || ' took slot ' || m.slot || ' from ' || m.was || ', which is still a member'
from moves m join states s on s.g = m.g and s.n = m.n join groups g on g.g = m.g
where m.is_now in ('', s.member) and m.is_now <> m.was and m.was not in ('', s.member) and exists (select 1 from members k where k.g = m.g and k.n = m.n and k.id = m.was);
