-- Of the indexes that were built, those that are constraints.
do $$
declare
  i record;
begin
  for i in
    select * from dibs_adoption.indexes
    where contype is not null
      and not exists (select from pg_constraint where conrelid = 'dibs.messages'::regclass and conname = name)
    order by name
  loop
    execute format('alter table dibs.messages add constraint %I %s using index %1$I', i.name, case i.contype when 'p' then 'primary key' else 'unique' end);
  end loop;
end
$$;
