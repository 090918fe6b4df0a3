-- a member moves the positions of its own slots alone
select g.name || ', state ' || m.n || ': ' || s.member || ' moved slot ' || m.slot || ', which "' || m.was || '" holds, to ' || m.position as finding
from moves m join states s on s.g = m.g and s.n = m.n join groups g on g.g = m.g where m.position > m.before and m.was <> s.member and s.member <> '';
