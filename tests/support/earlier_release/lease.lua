-- Acquires or renews the lease of one process of a rollout (its controller, the beat that sends), by the server's clock.
-- KEYS[1] the lease   ARGV owner, milliseconds (0 releases), an owner that is known to have ended
-- Returns {token} with the fencing token, larger with each new owner; {owner, milliseconds left} if another one has it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'owner', 'until', 'token')
local owner, ends = found[1] or '', tonumber(found[2]) or 0
if owner ~= ARGV[1] and owner ~= ARGV[3] and ends > now then
  return {owner, tostring(ends - now)}
end
local length = tonumber(ARGV[2])
if length == 0 then
  if owner == ARGV[1] then
    redis.call('HSET', KEYS[1], 'until', 0, 'owner', '')
  end
  return {found[3] or '0'}
end
local token = tonumber(found[3]) or 0
if owner ~= ARGV[1] then
  token = token + 1
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', now + length, 'token', token)
return {tostring(token)}
