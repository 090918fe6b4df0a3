select a.outcome, a.stream, a.version, a.global_position, a.id, a.time
from dibs.append($1::text[], $2::bigint[], $3::integer[], $4::uuid[], $5::text[], $6::json[], $7::json[], $8::bigint[], past => $9::text::jsonb, after => $10::uuid[], shared => true) a
