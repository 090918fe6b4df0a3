-- a life is delivered messages of its own slots alone, from where the last holder left them
select d.name || ' was delivered ' || m.stream || '@' || m.position || ', and had joined no group' as finding
from handed d join groups g on g.g = d.g join met m on m.g = d.g and m.message = d.message
where not g.alone and d.call = 'handle' and not exists (select 1 from begins b where b.r = d.r)
union all
select d.name || ' was delivered ' || m.stream || '@' || m.position || ' at ' || m.global || '; slot ' || m.slot || ' was "' || b.holder || '"''s, at ' || b.position || ', in state ' || s.n || ', when its life began'
from handed d join met m on m.g = d.g and m.message = d.message join begins x on x.r = d.r join states s on s.g = x.g and s.n = x.n join spots b on b.g = x.g and b.n = x.n and b.slot = m.slot
where d.call = 'handle' and (b.holder <> s.member or m.global < b.position);
