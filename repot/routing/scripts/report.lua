-- Adds what a process counted since its last report. Safe to repeat: reports are numbered. Uses the server's clock.
-- KEYS[1] counts of the side, a hash   KEYS[2] states of workers, a hash   KEYS[3] number of the process's last report
-- ARGV    number, seconds for which the number is kept, worker's name ("" for none), its state, then fields and numbers
-- Returns 1; 0 if the report was taken before.
if (tonumber(redis.call('GET', KEYS[3])) or 0) >= tonumber(ARGV[1]) then
  return 0
end
for place = 5, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[place], ARGV[place + 1])
end
if ARGV[3] ~= '' then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[2], ARGV[3], string.format('%d.%06d ', time[1], time[2]) .. ARGV[4])
end
redis.call('SET', KEYS[3], ARGV[1], 'EX', ARGV[2])
return 1
