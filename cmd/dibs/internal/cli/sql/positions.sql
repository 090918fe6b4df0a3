-- Each consumer writes where it is once a second, and nothing is removed by itself.
with counted as materialized (
  select c.name, dibs.count_category(c.name, 0, $1 + 1) as messages
  from dibs.categories('position') c (name)
  where c.name ~ '[:+]position$'
)
select 'positions', 'warn', format('%s has more than %s messages, which record where consumers are', c.name, $1::bigint),
  'of each of its streams the last counts: trim the category every night, with --keep=10'
from counted c
where c.messages > $1
union all
select 'positions', 'ok', format('consumers keep %s positions in %s', coalesce(sum(c.messages), 0), case count(*) when 1 then '1 category' else count(*) || ' categories' end), null
from counted c
having coalesce(max(c.messages), 0) <= $1
