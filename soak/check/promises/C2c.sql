-- a member that handles the category in order is delivered it so
with whole as (
	select f.*, max(f.global) over (partition by f.r order by f.at, f.d rows between unbounded preceding and 1 preceding) as highest
	from first f join begins b on b.r = f.r join states s on s.g = b.g and s.n = b.n join members m on m.g = s.g and m.n = s.n and m.id = s.member
	where m.whole
)
select name || ': the message at ' || global || ' was delivered in one life after the one at ' || highest as finding from whole where global <= highest;
