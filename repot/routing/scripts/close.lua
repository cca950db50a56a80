-- Adds a synthetic task that has ended to the totals, and forgets it. Safe to repeat: only the first call finds it.
-- KEYS[1] sent, a hash   KEYS[2] runs, a hash   KEYS[3] totals, a hash   ARGV id, side, runs, effects
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
for _, name in ipairs({'runs:', 'begun:', 'effects:', 'ended:', 'last:'}) do
  redis.call('HDEL', KEYS[2], name .. ARGV[1])
end
redis.call('HINCRBY', KEYS[3], ARGV[2] .. ':ended', 1)
redis.call('HINCRBY', KEYS[3], ARGV[2] .. ':repeated', math.max(tonumber(ARGV[3]) - 1, 0))
redis.call('HINCRBY', KEYS[3], ARGV[2] .. ':doubled', math.max(tonumber(ARGV[4]) - 1, 0))
return 1
