-- of a key the relay sends one after the other, without a gap
select process || ' was given ' || position || ' of ' || stream || ', and had ' || next || ' next' as finding
from letters
where answer = 'ok' and position > next;
