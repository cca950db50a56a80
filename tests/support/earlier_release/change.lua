-- Changes the record of a rollout and adds it to the history. Uses the server's clock; safe to repeat, because each
-- request has an id of its own.
-- KEYS[1] the record   KEYS[2] its history, a list
-- ARGV    expected generation (0: there is no record), request id, fencing token ("" if not bound to one),
--         longest history, then fields and values
-- Returns {answer, record}: changed; conflict (another generation); fenced (a later token has changed the record).
local expected, request, token = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]) or 0
local found = redis.call('HMGET', KEYS[1], 'generation', 'request', 'token')
if found[2] == request then
  -- the answer to the first attempt was lost
  return {'changed', redis.call('HGETALL', KEYS[1])}
end
local generation = tonumber(found[1]) or 0
if generation ~= expected then
  return {'conflict', redis.call('HGETALL', KEYS[1])}
end
if token > 0 and token < (tonumber(found[3]) or 0) then
  return {'fenced', redis.call('HGETALL', KEYS[1])}
end
local time = redis.call('TIME')
local fields = {'generation', generation + 1, 'updated_at', time[1] * 1000 + math.floor(time[2] / 1000),
  'request', request}
if token > 0 then
  fields[#fields + 1], fields[#fields + 2] = 'token', ARGV[3]
end
for number = 5, #ARGV do
  fields[#fields + 1] = ARGV[number]
end
redis.call('HSET', KEYS[1], unpack(fields))
local record = redis.call('HGETALL', KEYS[1])
redis.call('RPUSH', KEYS[2], cjson.encode(record))
redis.call('LTRIM', KEYS[2], -tonumber(ARGV[4]), -1)
return {'changed', record}
