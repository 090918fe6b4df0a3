select v.rule, v.category, v.stream, v.position, v.global_position, v.expected, v.found, v.checked
from dibs.verify_queues($1::text[], $2::integer) v
