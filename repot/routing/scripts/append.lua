-- Adds a line to a list. Safe to repeat: the line that is the last one already is not added.
-- KEYS[1] the list   ARGV the line, longest list
-- Returns 1; 0 if it was there.
if redis.call('LRANGE', KEYS[1], -1, -1)[1] == ARGV[1] then
  return 0
end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[2]), -1)
return 1
