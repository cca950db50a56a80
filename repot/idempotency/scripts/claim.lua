-- Claims a key for a run. By the server's clock; safe to send twice, as the owner is new for each claim.
-- KEYS[1] the record
-- ARGV    owner, lease ms, kept ms, payload, task, task id, worker, replay, park ("1" or ""), most doubts
-- Returns {verdict, ...}: see the end of each branch.
local owner, lease, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local payload, id, replay = ARGV[4], ARGV[6], tonumber(ARGV[8])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local names = {'state', 'owner', 'fence', 'until', 'payload', 'replay', 'id', 'held_for', 'runs', 'doubts', 'worker',
  'began', 'result', 'kept', 'error'}
local found = {}
for number, value in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do
  found[names[number]] = value or ''
end
local state, until_ms = found.state, tonumber(found['until']) or 0
local runs, doubts = tonumber(found.runs) or 0, tonumber(found.doubts) or 0

if state == 'running' and found.owner == owner then
  -- the answer to the first try was lost
  return {'claimed', found.fence, runs, ''}
end
if payload ~= '' and found.payload ~= '' and payload ~= found.payload then
  return {'mismatch', found.id}
end
-- a person asked for another run after the one that is on record
local asked = replay > (tonumber(found.replay) or 0)
if state == 'done' then
  return {'done', found.id, found.kept, found.result, found.error}
end
if state == 'failed' and not asked then
  return {'failed', found.id, found.error}
end
if state == 'running' and until_ms > now then
  return {'running', until_ms - now, found.id, found.worker}
end
if state == 'released' and until_ms > now and found.held_for ~= '' and found.held_for ~= id then
  return {'running', until_ms - now, found.id, found.worker}
end
if state == 'running' then
  -- its lease ran out: nobody knows whether it had its effect
  state, doubts = 'unknown', doubts + 1
  redis.call('HSET', KEYS[1], 'state', state, 'doubts', doubts)
end
if state == 'unknown' and not asked and (ARGV[9] == '1' or doubts >= tonumber(ARGV[10])) then
  local first = redis.call('HSETNX', KEYS[1], 'parked', now)
  -- waits for a person, however long
  redis.call('PERSIST', KEYS[1])
  return {'unknown', found.id, found.worker, found.began, doubts, first}
end

local fence = tonumber(found.fence) or 0
-- the clock as the floor: a store that lost its last writes in a failover does not hand out a fence twice
fence = string.format('%.0f', math.max(fence + 1, time[1] * 1000000 + time[2]))
-- HSET comes first: after any other write a script goes on in a store that has no room left
redis.call('HSET', KEYS[1], 'state', 'running', 'owner', owner, 'fence', fence, 'until', now + lease, 'payload', payload,
  'replay', math.max(replay, tonumber(found.replay) or 0), 'task', ARGV[5], 'id', id, 'worker', ARGV[7],
  'runs', runs + 1, 'doubts', doubts, 'began', now)
redis.call('HDEL', KEYS[1], 'result', 'kept', 'error', 'ended', 'held_for', 'parked')
redis.call('PEXPIRE', KEYS[1], lease + kept)
return {'claimed', fence, runs + 1, state}
