-- a delivery is given once
select 'item ' || position || ' was given under version ' || version || ' to sessions ' || group_concat(session, ', ') as finding
from given
group by position, version
having count(*) > 1;
