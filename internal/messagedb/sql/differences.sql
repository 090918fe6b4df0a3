select s.stream_name,
  coalesce(sum(s.messages) filter (where s.messages > 0), 0)::bigint,
  -coalesce(sum(s.messages) filter (where s.messages < 0), 0)::bigint
from dibs_adoption.sums s
where not s.tail
group by s.stream_name
having sum(s.messages) <> 0 or bit_xor(s.checksum) <> 0
limit 10
