select s.stream_name, s.first_position, s.version
from dibs.category_streams($1::text, $2::text, $3::integer) s
