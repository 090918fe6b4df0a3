-- Fails, so that COMMIT behind it in the pipeline does nothing, if the session is not in the
-- transaction that was begun, or if the messages are not written.
select case when a.outcome operator(pg_catalog.=) 'written' then a.version else pg_catalog.concat('dibs:refused:')::bigint end, a.global_position, a.time
from dibs.append($1::text[], $2::bigint[], $3::integer[], $4::uuid[], $5::text[], $6::json[], $7::json[], $8::bigint[], past => $9::text::jsonb, after => $10::uuid[], shared => true) a
where case
  when pg_catalog.current_setting('dibs.transaction', true) operator(pg_catalog.=) 'begun' then true
  else pg_catalog.concat('dibs:ended:')::boolean
end
