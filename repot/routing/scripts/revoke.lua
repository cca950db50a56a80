-- Adds ids of revoked tasks. Safe to repeat. Uses the server's clock.
-- KEYS[1] a sorted set of ids, by the time at which they were revoked in microseconds since 1970
-- ARGV    seconds for which an id is kept, number of ids that are kept at most, then ids
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for place = 3, #ARGV do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[place])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[1] * 1000000))
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -ARGV[2] - 1)
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
