-- ARGV: owner, lease in ms, an owner that has ended. Returns the token; or the owner, and the rest of the lease in ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local owner = redis.call('HGET', KEYS[1], 'owner') or ''
local live = tonumber(redis.call('HGET', KEYS[1], 'lease_until') or 0)
if live > now and owner ~= ARGV[1] and owner ~= ARGV[3] then return {owner, string.format('%.0f', live - now)} end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'lease_until', string.format('%.0f', now + tonumber(ARGV[2])))
return {redis.call('HINCRBY', KEYS[1], 'token', 1)}
