-- The settings that a driver refuses or takes a server by, and their values.
select n.name, current_setting(n.name)
from unnest(array['fsync', 'full_page_writes', 'synchronous_commit', 'server_encoding', 'client_encoding', 'in_hot_standby']) with ordinality n (name, number)
order by n.number
