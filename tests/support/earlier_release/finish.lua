-- Ends a lease in its owner's name; safe to repeat.
-- KEYS[1] the idempotency record
-- ARGV    owner, outcome (done, failed, released, unknown), retention ms, has result ("1" or ""), result, error,
--         hold ms, held for (a task id), mode
-- Mode: "" by the run, while its lease is live; "late" by the run, also after that, unless another run has the key;
--       "operator" by an operator, not while the lease is live; "force" by an operator, in any case.
-- Returns {result, state}. ok; late: the lease expired; live: it has not; lost: the record is not this owner's.
local owner, outcome, mode = ARGV[1], ARGV[2], ARGV[9]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'state', 'owner', 'expires_at')
local state = found[1] or ''
if found[2] ~= owner then
  return {'lost', state}
end
-- an operator released the key, but no other run has acquired it: the run knows its own outcome better
local reopened = state == 'released' and outcome ~= 'released' and (mode == '' or mode == 'late')
if state ~= 'running' and state ~= 'unknown' and not reopened then
  -- the answer to the first attempt was lost
  return {state == outcome and 'ok' or 'lost', state}
end
local live = state == 'running' and tonumber(found[3]) > now
if mode == '' and not live then
  return {'late', state}
end
if mode == 'operator' and live then
  return {'live', state}
end
redis.call('HSET', KEYS[1], 'state', outcome, 'ended_at', now, 'has_result', ARGV[4], 'result', ARGV[5],
  'error', ARGV[6], 'expires_at', now + ARGV[7], 'held_for', ARGV[8])
redis.call('HDEL', KEYS[1], 'parked_at')
if outcome == 'unknown' then
  redis.call('HINCRBY', KEYS[1], 'unknown_outcomes', 1)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3] + ARGV[7])
return {'ok', outcome}
