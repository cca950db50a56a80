-- Claims a scope, its index and the job's record at once; safe to send twice.
-- ARGV id, scope, its name, payload, idempotency key, task, cost, lease ms, kept ms, most audited, most scopes counted,
--      submitter
-- Returns {verdict, now, record}: accepted; repeated: the key came before, with its job; mismatch: with another payload;
--         taken: with the job that holds the scope.
local id, scope, name, payload, key, task, cost = unpack(ARGV, 1, 7)
local lease, kept, most, scopes = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11])
local key_name = base .. ':key:' .. key

local function count(member)
  write('HINCRBY', base .. ':counts', member, 1)
  write('HINCRBYFLOAT', base .. ':costs', member, cost)
end

local function refuse(active)
  audit('refused', name, id, active, look(active).status, most, kept)
  -- '=' before each scope, so that the sum of all has a name of its own
  count('sum')
  count('=' .. name)
  write('ZADD', base .. ':scopes', now, name)
  if redis.call('ZCARD', base .. ':scopes') > scopes then
    local oldest = redis.call('ZPOPMIN', base .. ':scopes')[1]
    redis.call('HDEL', base .. ':counts', '=' .. oldest)
    redis.call('HDEL', base .. ':costs', '=' .. oldest)
  end
  for _, one in ipairs({':counts', ':costs', ':scopes'}) do
    redis.call('PEXPIRE', base .. one, kept)
  end
  return told('taken', active)
end

if redis.call('EXISTS', record_of(id)) == 1 then
  -- the answer to the first try was lost
  return told('accepted', id)
end
local first = key ~= '' and text_of(key_name)
if first then
  local found = look(first)
  -- whoever claimed and never sent has died: its key is free again
  local abandoned = found.status == '' or (found.status == 'accepted' and not found.holds)
  if not abandoned then
    return told(found.payload == payload and 'repeated' or 'mismatch', first)
  end
end
local active = holder_of(scope, kept, id)
if active then
  return refuse(active)
end
local generation = write('INCR', base .. ':generation:' .. scope)
redis.call('HSET', record_of(id), 'id', id, 'scope', scope, 'name', name, 'payload', payload, 'key', key, 'task', task,
  'status', 'accepted', 'generation', generation, 'created', now, 'submitter', ARGV[12])
redis.call('SET', index_of(scope), id)
hold(id, scope, lease, kept)
if key ~= '' then
  redis.call('SET', key_name, id, 'PX', kept)
end
return told('accepted', id)
