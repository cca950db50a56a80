-- Ends a run in its owner's name; safe to send twice.
-- KEYS[1] the record
-- ARGV    owner, outcome (done, failed, released, unknown), kept ms, result kept ("1" or ""), result, error,
--         hold ms, held for (a task id), how
-- How: "" by its run, within the lease; "late" by its run, also after it, unless somebody has claimed the key since;
--      "person" by somebody else, not during the lease; "force" by somebody else, whatever runs.
-- Returns {verdict, state}: ok; late: the lease ran out; live: it has not; lost: the record is not this owner's.
local owner, outcome, how = ARGV[1], ARGV[2], ARGV[9]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'state', 'owner', 'until')
local state = found[1] or ''
if found[2] ~= owner then
  return {'lost', state}
end
-- a person let it run again, but nobody has come since: what its run knows is better
local let_go = state == 'released' and outcome ~= 'released' and (how == '' or how == 'late')
if state ~= 'running' and state ~= 'unknown' and not let_go then
  -- the answer to the first try was lost
  return {state == outcome and 'ok' or 'lost', state}
end
local live = state == 'running' and tonumber(found[3]) > now
if how == '' and not live then
  return {'late', state}
end
if how == 'person' and live then
  return {'live', state}
end
redis.call('HSET', KEYS[1], 'state', outcome, 'ended', now, 'kept', ARGV[4], 'result', ARGV[5], 'error', ARGV[6],
  'until', now + ARGV[7], 'held_for', ARGV[8])
redis.call('HDEL', KEYS[1], 'parked')
if outcome == 'unknown' then
  redis.call('HINCRBY', KEYS[1], 'doubts', 1)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3] + ARGV[7])
return {'ok', outcome}
