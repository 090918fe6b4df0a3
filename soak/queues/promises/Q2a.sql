-- an item is completed once
select 'item ' || position || ' was completed at versions ' || group_concat(version, ', ') as finding from accepted group by position having count(*) > 1
union all
select 'item ' || i.position || ' is dead, and was completed at version ' || min(a.version) from items i join accepted a on a.position = i.position where i.dead group by i.position;
