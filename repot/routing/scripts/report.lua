-- Adds what a process counted since its last report. Safe to repeat: reports are numbered. Uses the server's clock.
-- KEYS[1] counts of the side, a hash   KEYS[2] states of workers, a hash   KEYS[3] number of the process's last report
-- KEYS[4] what has been counted once, a hash
-- ARGV    number, seconds for which the number is kept, worker's name and side ("" for none), its state, seconds for
--         which KEYS[4] is kept, how many fields, then fields and numbers; then what is counted once: its name, how many
--         fields, fields
-- Returns 1; 0 if the report was taken before.
if (tonumber(redis.call('GET', KEYS[3])) or 0) >= tonumber(ARGV[1]) then
  return 0
end
local place = 7
for _ = 1, tonumber(ARGV[6]) do
  redis.call('HINCRBY', KEYS[1], ARGV[place], ARGV[place + 1])
  place = place + 2
end
while place < #ARGV do
  local fields = tonumber(ARGV[place + 1])
  if redis.call('HSETNX', KEYS[4], ARGV[place], '') == 1 then
    for field = place + 2, place + 1 + fields do
      redis.call('HINCRBY', KEYS[1], ARGV[field], 1)
    end
    redis.call('EXPIRE', KEYS[4], ARGV[5])
  end
  place = place + 2 + fields
end
if ARGV[3] ~= '' then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[2], ARGV[3], string.format('%d.%06d ', time[1], time[2]) .. ARGV[4])
end
redis.call('SET', KEYS[3], ARGV[1], 'EX', ARGV[2])
return 1
