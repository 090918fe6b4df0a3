create or replace function dibs.floor_class(category text) returns integer
language sql immutable parallel safe
return hashtext('dibs.floor.' || category);

comment on function dibs.floor_class(text) is
'The class of the locks of writers that share the lock of a category. The key is the lower 32 bits of the last global position
that was drawn when the writer took it: the writer draws none up to that.';
