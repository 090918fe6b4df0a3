-- a handler whose item another has knows it
select 'item ' || h.position || ' was given at version ' || g.version || ', and the context of its handler of version ' || h.version || ' ended ' || ((h.ended - g.ended) / 1000) || ' ms later' as finding
from handled h join given g on g.position = h.position and g.version > h.version, limits x
where h.call = 'handle' and h.ended <> x.never and h.ended > g.ended + x.ends;
