-- Fails, so that COMMIT behind it in the pipeline does nothing, if the session is not in the
-- transaction that was begun.
select case
  when pg_catalog.current_setting('dibs.transaction', true) operator(pg_catalog.=) 'begun' then 0
  else pg_catalog.concat('dibs:ended:')::integer
end
