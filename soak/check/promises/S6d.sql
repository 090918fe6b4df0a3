-- a read of a stream has no gap
select name || ' read ' || stream || ' from position ' || position || ' on, with a gap' as finding from reads where gap;
