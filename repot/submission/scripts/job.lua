-- Put before every other script. KEYS[1] is the beginning of all keys of a tenant: they share its hash tag, so that they
-- lie on one node of a cluster. Times are milliseconds by the server's clock.
local base = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- States in which a job holds its scope, for as long as its lease has not run out.
local HOLDING = {accepted = true, queued = true, running = true}

local function record_of(id)
  return base .. ':job:' .. id
end

local function index_of(scope)
  return base .. ':active:' .. scope
end

local function failed(answer)
  return type(answer) == 'table' and answer.err
end

-- What a command reads; nil where a value of another type is stored, which must not stop whoever only asks. Any other
-- error ends the script: without a right to read nothing may look free.
local function read(command, name, ...)
  local found = redis.pcall(command, name, ...)
  local why = failed(found)
  if not why then
    return found
  end
  if string.find(why, 'WRONGTYPE', 1, true) then
    return nil
  end
  return redis.call(command, name, ...)
end

-- The text under a name; nil for none, or a value of another type.
local function text_of(name)
  return read('GET', name) or nil
end

-- Writes where something may stand that is none of ours: that is begun anew. A store without room still raises.
local function write(command, name, ...)
  local answer = redis.pcall(command, name, ...)
  local why = failed(answer)
  if not why then
    return answer
  end
  if string.find(why, 'is not a', 1, true) and string.sub(command, 1, 5) == 'HINCR' then
    redis.call('HDEL', name, (...))
  elseif string.find(why, 'WRONGTYPE', 1, true) or string.find(why, 'is not a', 1, true) then
    redis.call('DEL', name)
  end
  return redis.call(command, name, ...)
end

-- What is on record; a status of '' for nothing, or nothing that can be read.
local function look(id)
  local names = {'status', 'scope', 'owner', 'until', 'payload', 'key', 'generation', 'name', 'hop'}
  local values, found = read('HMGET', record_of(id), unpack(names)) or {}, {}
  for number, name in ipairs(names) do
    found[name] = values[number] or ''
  end
  found.hop = tonumber(found.hop) or 0
  found.holds = HOLDING[found.status] and (tonumber(found['until']) or 0) > now
  return found
end

local function told(verdict, id)
  return {verdict, now, read('HGETALL', record_of(id)) or {'id', id, 'status', 'unreadable'}}
end

-- Keeps what belongs to a job that holds its scope until `kept` after its lease has run out. A store without room lets a
-- script go on that has written before: what needs none comes first.
local function hold(id, scope, lease, kept)
  redis.call('PEXPIRE', record_of(id), lease + kept)
  redis.call('PEXPIRE', index_of(scope), lease + kept)
  redis.call('PEXPIRE', base .. ':generation:' .. scope, lease + kept)
  redis.call('HSET', record_of(id), 'until', now + lease, 'updated', now)
end

-- Ends a job; the index is cleared only if it names this one. A record that is not there stays so.
local function close(id, scope, status, kept)
  if text_of(index_of(scope)) == id then
    redis.call('DEL', index_of(scope))
  end
  if redis.call('HEXISTS', record_of(id), 'status') == 1 then
    redis.call('HSET', record_of(id), 'status', status, 'updated', now, 'ended', now)
    redis.call('PEXPIRE', record_of(id), kept)
  end
end

-- The job that holds a scope; one whose lease has run out is marked lost, and holds it no more.
local function holder_of(scope, kept, successor)
  local id = text_of(index_of(scope))
  if not id or id == successor then
    return nil
  end
  local found = look(id)
  if found.holds then
    return id
  end
  if HOLDING[found.status] then
    close(id, scope, 'lost', kept)
    redis.call('HSET', record_of(id), 'successor', successor)
  end
  return nil
end

-- What was not done is written down; the audit keeps about the last `most`.
local function audit(what, name, id, active, status, most, kept)
  write('XADD', base .. ':refused', 'MAXLEN', '~', most, '*', 'what', what, 'scope', name, 'job', id,
    'active', active, 'status', status)
  redis.call('PEXPIRE', base .. ':refused', kept)
end
