-- append adds an entry to the stream KEYS[1], unless the stream has had it. The hash KEYS[2] has, by the key of
-- the order, the global position and the id of the message that was added last.
--
-- ARGV: the key, the global position, the id, and then the fields of the entry.
-- It returns the entry's id, '' if the stream has had the message, or '!' and the id of another message that
-- was added with the same position.
local last = redis.call('HGET', KEYS[2], ARGV[1])
if last then
	local position, id = string.match(last, '^(%d+) (.*)$')
	if not position then
		return redis.error_reply('ERR the hash of positions has a field that is no position')
	end
	-- Positions are compared as decimal texts: a number of Lua is exact up to 2^53 only.
	if #position > #ARGV[2] or #position == #ARGV[2] and position > ARGV[2] then
		return ''
	end
	if position == ARGV[2] then
		if id == ARGV[3] then
			return ''
		end
		return '!' .. id
	end
end
local entry = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
return entry
