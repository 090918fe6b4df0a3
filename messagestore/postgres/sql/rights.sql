-- The first function of the list that the user may not call, and whether transactions of the
-- user are read-only.
select
  coalesce((
    select p.proname
    from pg_catalog.pg_proc p
    where p.pronamespace operator(pg_catalog.=) pg_catalog.to_regnamespace('dibs') and p.proname operator(pg_catalog.=) any ($1::text[])
      and not pg_catalog.has_function_privilege(p.oid, 'execute')
    order by p.proname
    limit 1
  )::text, ''),
  pg_catalog.current_setting('transaction_read_only')
