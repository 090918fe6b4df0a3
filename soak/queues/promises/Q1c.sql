-- nothing is removed that is open
select 'item ' || position || ' of ' || stream || ' was removed while it was open' as finding from items where gone and open
union all
select 'the message of item ' || position || ' was removed, and not its row' from lines where what = 'M';
