-- Acquires the lease of a key for a run. Uses the server's clock; safe to repeat, because the owner is new for each run.
-- KEYS[1] the idempotency record
-- ARGV    owner, lease ms, retention ms, payload digest, task, task id, worker, replay, park ("1" or ""),
--         max unknown outcomes, then owners of earlier requests for this message that were not answered
-- Returns {answer, ...}: see the end of each branch.
local owner, lease, retention = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local payload, task_id, replay = ARGV[4], ARGV[6], tonumber(ARGV[8])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local names = {'state', 'owner', 'fencing_token', 'expires_at', 'payload', 'replay', 'task_id', 'held_for', 'runs',
  'unknown_outcomes', 'worker', 'started_at', 'result', 'has_result', 'error'}
local found = {}
for number, value in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do
  found[names[number]] = value or ''
end
local state, expires_at = found.state, tonumber(found.expires_at) or 0
local runs, unknown_outcomes = tonumber(found.runs) or 0, tonumber(found.unknown_outcomes) or 0

if state == 'running' and found.owner == owner then
  -- the answer to the first attempt was lost
  return {'acquired', found.fencing_token, runs, ''}
end
if payload ~= '' and found.payload ~= '' and payload ~= found.payload then
  return {'mismatch', found.task_id}
end
if state == 'running' or state == 'unknown' then
  for index = 11, #ARGV do
    if ARGV[index] == found.owner then
      -- granted, but its owner got no answer: no run of it has begun, or ever will
      runs, unknown_outcomes = runs - 1, unknown_outcomes - (state == 'unknown' and 1 or 0)
      state, found.held_for = 'released', ''
      break
    end
  end
end
-- an operator replayed the message after the run on record
local replayed = replay > (tonumber(found.replay) or 0)
if state == 'done' then
  return {'done', found.task_id, found.has_result, found.result, found.error}
end
if state == 'failed' and not replayed then
  return {'failed', found.task_id, found.error}
end
if state == 'running' and expires_at > now then
  return {'running', expires_at - now, found.task_id, found.worker}
end
if state == 'released' and expires_at > now and found.held_for ~= '' and found.held_for ~= task_id then
  return {'running', expires_at - now, found.task_id, found.worker}
end
if state == 'running' then
  -- the lease expired: the run may or may not have had its effect
  state, unknown_outcomes = 'unknown', unknown_outcomes + 1
  redis.call('HSET', KEYS[1], 'state', state, 'unknown_outcomes', unknown_outcomes)
end
if state == 'unknown' and not replayed and (ARGV[9] == '1' or unknown_outcomes >= tonumber(ARGV[10])) then
  local first = redis.call('HSETNX', KEYS[1], 'parked_at', now)
  -- waits for an operator without a time limit
  redis.call('PERSIST', KEYS[1])
  return {'parked', found.task_id, found.worker, found.started_at, unknown_outcomes, first}
end

local fencing_token = tonumber(found.fencing_token) or 0
-- never below the clock: a store that lost its last writes in a failover does not issue a fencing token twice
fencing_token = string.format('%.0f', math.max(fencing_token + 1, time[1] * 1000000 + time[2]))
-- HSET comes first: in a store without free memory, a script that has already written may go on writing
redis.call('HSET', KEYS[1], 'state', 'running', 'owner', owner, 'fencing_token', fencing_token,
  'expires_at', now + lease, 'payload', payload, 'replay', math.max(replay, tonumber(found.replay) or 0),
  'task', ARGV[5], 'task_id', task_id, 'worker', ARGV[7], 'runs', runs + 1, 'unknown_outcomes', unknown_outcomes,
  'started_at', now)
redis.call('HDEL', KEYS[1], 'result', 'has_result', 'error', 'ended_at', 'held_for', 'parked_at')
redis.call('PEXPIRE', KEYS[1], lease + retention)
return {'acquired', fencing_token, runs + 1, state}
