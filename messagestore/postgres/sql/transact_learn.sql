select a.stream, a.version
from dibs.append($1::text[], $2::bigint[], $3::integer[], $4::uuid[], $5::text[], $6::json[], $7::json[], $8::bigint[], $9::boolean, past => $10::text::jsonb, after => $11::uuid[]) a
where a.outcome operator(pg_catalog.=) 'fenced'
