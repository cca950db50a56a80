-- Claims a scope, its index and the job's record in one step; safe to repeat.
-- ARGV id, scope, its name, payload digest, idempotency key, task, cost, lease ms, retention ms, max audit entries,
--      max counted scopes, submitter, grace
-- Returns {result, now, record}. accepted; repeated: the key's earlier job; mismatch: the key's earlier job, which has
--         another payload; conflict: the job that holds the scope.
local id, scope, name, payload, key, task, cost = unpack(ARGV, 1, 7)
local lease, retention, most, scopes = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11])
grace = tonumber(ARGV[13])
local key_name = base .. ':key:' .. key

local function count(member)
  write('HINCRBY', base .. ':counts', member, 1)
  write('HINCRBYFLOAT', base .. ':costs', member, cost)
end

local function refuse(active)
  audit('refused', name, id, active, load_job(active).status, most, retention)
  -- '=' before each scope separates them from the total, `sum`
  count('sum')
  count('=' .. name)
  write('ZADD', base .. ':scopes', now, name)
  if redis.call('ZCARD', base .. ':scopes') > scopes then
    local oldest = redis.call('ZPOPMIN', base .. ':scopes')[1]
    redis.call('HDEL', base .. ':counts', '=' .. oldest)
    redis.call('HDEL', base .. ':costs', '=' .. oldest)
  end
  for _, one in ipairs({':counts', ':costs', ':scopes'}) do
    redis.call('PEXPIRE', base .. one, retention)
  end
  return reply('conflict', active)
end

if redis.call('EXISTS', record_of(id)) == 1 then
  -- the answer to the first attempt was lost
  return reply('accepted', id)
end
local first = key ~= '' and text_of(key_name)
if first then
  local found = load_job(first)
  -- its submitter died before it sent the job: the key is free again
  local abandoned = found.status == '' or (found.status == 'accepted' and not found.is_held)
  if not abandoned then
    return reply(found.payload == payload and 'repeated' or 'mismatch', first)
  end
end
local active = active_job_of(scope, retention, id)
if active then
  return refuse(active)
end
local generation = write('INCR', base .. ':generation:' .. scope)
redis.call('HSET', record_of(id), 'id', id, 'scope', scope, 'name', name, 'payload', payload, 'key', key, 'task', task,
  'status', 'accepted', 'generation', generation, 'created_at', now, 'submitter', ARGV[12])
redis.call('SET', index_of(scope), id)
extend_lease(id, scope, lease, retention)
if key ~= '' then
  redis.call('SET', key_name, id, 'PX', retention)
end
return reply('accepted', id)
