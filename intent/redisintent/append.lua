-- append puts a message in the place of an intent's last one, if that has the expected version or
-- if there is none and none is expected. It answers with the time in microseconds and the new
-- version, or with the time and the last message as it is. A message that is there already is not
-- put there again. A version is of the clock, so that none is given out again after a loss.
--
-- KEYS: the intent. ARGV: the expected version (-1 for none, -2 for any), and the message's id,
-- type, data and metadata. Without an id nothing is written.
local clock = redis.call('TIME')
local now = clock[1] .. string.format('%06d', clock[2])
local last = redis.pcall('HMGET', KEYS[1], 'version', 'id')
if last.err or not last[1] and redis.call('EXISTS', KEYS[1]) == 1 then
	return {now, '0', now, '', '', '', ''} -- another program's
end
local version = last[1] or '-1'
if ARGV[2] ~= '' and last[2] ~= ARGV[2] and (ARGV[1] == version or ARGV[1] == '-2') then
	version = string.format('%.0f', math.max(version + 1, tonumber(now)))
	redis.call('HSET', KEYS[1], 'version', version, 'time', now,
		'id', ARGV[2], 'type', ARGV[3], 'data', ARGV[4], 'metadata', ARGV[5])
	return {now, version}
end
if not last[1] then
	return {now}
end
return {now, version, unpack(redis.call('HMGET', KEYS[1], 'time', 'id', 'type', 'data', 'metadata'))}
