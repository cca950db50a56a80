-- Changes a record if it is as its caller expects, and returns it if it is not. Uses the server's clock; what is expected
-- makes it safe to repeat.
-- KEYS[1] the record, a hash   KEYS[2] its history, a list, if it has one
-- ARGV[1] JSON: names of fields, and the values that they have, "" for one that is not there; a field with an instant that
--         is not over, "" for none; fields and values to put; fields and milliseconds from now; names of fields to delete;
--         milliseconds for which the record is kept, -1 as before and 0 without a limit; a field that is never below the
--         clock in microseconds, "" for none, and its least value; a line to add to the history, "" for none, and how many
--         are kept. An empty text only reads.
-- NAMES are all fields, READ_BY is the command to read them by, HMGET or HGET: they stand before this text.
-- Returns the value of the field that is never below the clock, "" without one; or {now, values of all fields}, with now in
-- microseconds since 1970.
local time = redis.call('TIME')

local function read(names)
  if READ_BY == 'HMGET' then
    return redis.call('HMGET', KEYS[1], unpack(names))
  end
  local values = {}
  for place, name in ipairs(names) do
    values[place] = redis.call('HGET', KEYS[1], name)
  end
  return values
end

local function found()
  return {string.format('%.0f', time[1] * 1000000 + time[2]), read(NAMES)}
end

if ARGV[1] == '' then
  return found()
end
local names, values, live, put, later, gone, kept, rising, least, line, most = unpack(cjson.decode(ARGV[1]))
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for place, value in ipairs(read(names)) do
  if (value or '') ~= values[place] and not (names[place] == live and (tonumber(value) or 0) > now) then
    return found()
  end
end
if rising ~= '' then
  least = string.format('%.0f', math.max(least, time[1] * 1000000 + time[2]))
  put[#put + 1], put[#put + 2] = rising, least
end
for place = 1, #later, 2 do
  put[#put + 1], put[#put + 2] = later[place], string.format('%.0f', now + later[place + 1])
end
-- first: in a store without free memory, a script that has already written may go on writing
if #put > 0 then
  redis.call('HSET', KEYS[1], unpack(put))
end
if #gone > 0 then
  redis.call('HDEL', KEYS[1], unpack(gone))
end
if kept == 0 then
  redis.call('PERSIST', KEYS[1])
elseif kept > 0 then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', kept))
end
if line ~= '' then
  redis.call('RPUSH', KEYS[2], line)
  redis.call('LTRIM', KEYS[2], -most, -1)
end
return least
