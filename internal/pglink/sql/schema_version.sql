select v.version, v.serves
from dibs.schema_version() v
