-- a write is there whole, or not at all
select name || ': of the ' || messages || ' messages of one write ' || there || ' are there' as finding from batches where there < messages;
