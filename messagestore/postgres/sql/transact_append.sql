-- Appends, and fails unless all was written and the session is in the transaction that was
-- begun, so that COMMIT behind it in the pipeline does nothing. The answer is in the error's
-- text then, in hexadecimal digits: a cast of it fails with them in every language.
select s.answer, case
  when not s.written then pg_catalog.concat('dibs:answer:', pg_catalog.encode(pg_catalog.convert_to(s.answer, 'UTF8'), 'hex'), ':')::integer
  when pg_catalog.current_setting('dibs.transaction', true) operator(pg_catalog.=) 'begun' then 0
  else pg_catalog.concat('dibs:ended:')::integer
end
from (
  select
    pg_catalog.json_agg(pg_catalog.json_build_object(
      'outcome', a.outcome, 'stream', a.stream, 'version', a.version, 'globalPosition', a.global_position, 'id', a.id,
      'time', (extract(epoch from a.time) operator(pg_catalog.*) 1000000::numeric)::bigint
    ) order by a.n)::text as answer,
    pg_catalog.bool_and(a.outcome operator(pg_catalog.=) 'written') as written
  from dibs.append($1::text[], $2::bigint[], $3::integer[], $4::uuid[], $5::text[], $6::json[], $7::json[], $8::bigint[], $9::boolean, past => $10::text::jsonb, after => $11::uuid[])
    with ordinality a (outcome, stream, version, global_position, id, time, met_type, met_data, met_metadata, met_at, n)
) s
