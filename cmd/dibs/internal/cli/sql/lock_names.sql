select pg_catalog.hashtext('dibs.' || c.name), c.name
from dibs.categories(null) c (name)
where pg_catalog.hashtext('dibs.' || c.name) = any ($1::integer[])
