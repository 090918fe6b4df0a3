-- within a life each stream goes on from the message before, which is done
select g.name || ', ' || f.name || ': ' || f.stream || '@' || f.position || ' was delivered in one life after ' || f.before as finding
from first f join groups g on g.g = f.g where f.position <= f.before
union all
select g.name || ', ' || f.name || ': ' || f.stream || '@' || f.position || ' was delivered, and ' || b.position || ' was not done'
from first f join groups g on g.g = f.g
	-- Where a life begins with a stream, it goes on from the one before; else from the last that it had.
	cross join met b indexed by met_stream on b.g = f.g and b.stream = f.stream and b.position >= coalesce(f.before, f.position - 1) and b.position < f.position
where f.position > coalesce(f.before, -1) and b.done >= f.at and b.began <= f.at; -- those never delivered in order are told by C2a
