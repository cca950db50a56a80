-- Counts the effect of a run of a synthetic task, and keeps when the first one happened, by the server's clock.
-- Safe to repeat: a run counts once.
-- KEYS[1] runs, a hash   ARGV id, a name of the run
-- Returns how many effects happened.
if redis.call('HGET', KEYS[1], 'last:' .. ARGV[1]) == ARGV[2] then
  return tonumber(redis.call('HGET', KEYS[1], 'effects:' .. ARGV[1]))
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'last:' .. ARGV[1], ARGV[2])
redis.call('HSETNX', KEYS[1], 'ended:' .. ARGV[1], string.format('%d.%06d', time[1], time[2]))
return redis.call('HINCRBY', KEYS[1], 'effects:' .. ARGV[1], 1)
