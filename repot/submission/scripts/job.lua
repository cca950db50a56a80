-- Prepended to every other script. KEYS[1] is the prefix of all keys of a tenant; they share its hash tag, so they are
-- on one node of a cluster. Times are milliseconds by the server's clock.
local base = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- States in which a job holds its scope until its lease expires.
local ACTIVE = {accepted = true, queued = true, running = true}
-- More than 0: the process that asks could not reach the store either, so a run whose lease has expired may live.
local grace = 0

local function record_of(id)
  return base .. ':job:' .. id
end

local function index_of(scope)
  return base .. ':active:' .. scope
end

local function failed(answer)
  return type(answer) == 'table' and answer.err
end

-- Returns a command's answer; nil where the value has another type, so that reading goes on. Any other error ends the
-- script: without the right to read, no scope may look free.
local function read(command, name, ...)
  local found = redis.pcall(command, name, ...)
  local message = failed(found)
  if not message then
    return found
  end
  if string.find(message, 'WRONGTYPE', 1, true) then
    return nil
  end
  return redis.call(command, name, ...)
end

-- Returns the text stored under a key; nil if there is no value, or one of another type.
local function text_of(name)
  return read('GET', name) or nil
end

-- Writes, and replaces a value of another type. Still raises in a store without free memory.
local function write(command, name, ...)
  local answer = redis.pcall(command, name, ...)
  local message = failed(answer)
  if not message then
    return answer
  end
  if string.find(message, 'is not a', 1, true) and string.sub(command, 1, 5) == 'HINCR' then
    redis.call('HDEL', name, (...))
  elseif string.find(message, 'WRONGTYPE', 1, true) or string.find(message, 'is not a', 1, true) then
    redis.call('DEL', name)
  end
  return redis.call(command, name, ...)
end

-- Loads the record of a job; the status is '' if there is no record, or none that can be read.
local function load_job(id)
  local names = {'status', 'scope', 'owner', 'expires_at', 'payload', 'key', 'generation', 'name', 'replacements'}
  local values, found = read('HMGET', record_of(id), unpack(names)) or {}, {}
  for number, name in ipairs(names) do
    found[name] = values[number] or ''
  end
  found.replacements = tonumber(found.replacements) or 0
  found.has_lease = ACTIVE[found.status] and (tonumber(found.expires_at) or 0) > now
  found.is_held = found.has_lease or (found.status == 'running' and grace > 0)
  return found
end

local function reply(verdict, id)
  return {verdict, now, read('HGETALL', record_of(id)) or {'id', id, 'status', 'unreadable'}}
end

-- Extends a job's lease on its scope; all its keys expire `retention` after the lease. PEXPIRE comes first, as it needs no
-- memory: in a store without free memory, a script that has already written may go on writing.
local function extend_lease(id, scope, lease, retention)
  redis.call('PEXPIRE', record_of(id), lease + retention)
  redis.call('PEXPIRE', index_of(scope), lease + retention)
  redis.call('PEXPIRE', base .. ':generation:' .. scope, lease + retention)
  redis.call('HSET', record_of(id), 'expires_at', now + lease, 'updated_at', now)
end

-- Ends a job; clears the index only if it names this job, and its key if nothing has sent the job. Does not create a
-- missing record.
local function close(id, scope, status, retention)
  if status == 'lost' or status == 'unsent' then
    local found = load_job(id)
    local key = base .. ':key:' .. found.key
    if found.status == 'accepted' and found.key ~= '' and text_of(key) == id then
      redis.call('DEL', key)
    end
  end
  if text_of(index_of(scope)) == id then
    redis.call('DEL', index_of(scope))
  end
  if redis.call('HEXISTS', record_of(id), 'status') == 1 then
    redis.call('HSET', record_of(id), 'status', status, 'updated_at', now, 'ended_at', now)
    redis.call('PEXPIRE', record_of(id), retention)
  end
end

-- Returns the job that holds a scope; marks one with an expired lease lost.
local function active_job_of(scope, retention, successor)
  local id = text_of(index_of(scope))
  if not id or id == successor then
    return nil
  end
  local found = load_job(id)
  if found.is_held then
    return id
  end
  if ACTIVE[found.status] then
    close(id, scope, 'lost', retention)
    redis.call('HSET', record_of(id), 'successor', successor)
  end
  return nil
end

-- Records a refusal; the audit keeps about the last `most`.
local function audit(kind, name, id, active, status, most, retention)
  write('XADD', base .. ':refused', 'MAXLEN', '~', most, '*', 'kind', kind, 'scope', name, 'job', id,
    'active', active, 'status', status)
  redis.call('PEXPIRE', base .. ':refused', retention)
end
