-- Fails, so that COMMIT behind it in the pipeline does nothing, if the session is not in the
-- transaction that was begun. A condition without a column is looked at first.
select dibs.append_shared($1::text, $2::bigint, $3::uuid, $4::text, $5::json, $6::json, $7::bigint, $8::boolean)
where case
  when pg_catalog.current_setting('dibs.transaction', true) operator(pg_catalog.=) 'begun' then true
  else pg_catalog.concat('dibs:ended:')::boolean
end
