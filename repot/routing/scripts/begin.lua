-- Counts a run of a synthetic task that begins. Safe to repeat: a run counts once.
-- KEYS[1] runs, a hash   ARGV id, a name of the run
-- Returns how many began.
if redis.call('HGET', KEYS[1], 'begun:' .. ARGV[1]) == ARGV[2] then
  return tonumber(redis.call('HGET', KEYS[1], 'runs:' .. ARGV[1]))
end
redis.call('HSET', KEYS[1], 'begun:' .. ARGV[1], ARGV[2])
return redis.call('HINCRBY', KEYS[1], 'runs:' .. ARGV[1], 1)
