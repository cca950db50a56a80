-- Renews a live lease. KEYS[1] the idempotency record; ARGV owner, lease ms, retention ms. Returns 1, or 0 if it is lost.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'state', 'owner', 'expires_at')
if found[1] ~= 'running' or found[2] ~= ARGV[1] or tonumber(found[3]) <= now then
  return 0
end
redis.call('HSET', KEYS[1], 'expires_at', now + ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
return 1
