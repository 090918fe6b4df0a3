-- Divides the messages between two global positions into ranges of about so many.
insert into dibs_adoption.ranges (after, upto)
select coalesce(lag(b.upto) over (order by b.upto), $1), b.upto
from (
  select m.global_position as upto
  from (
    select global_position, row_number() over (order by global_position) as n
    from message_store.messages
    where global_position > $1 and global_position <= $2
  ) m
  where m.n % $3::bigint = 0
  union
  select $2
) b
where b.upto > $1
