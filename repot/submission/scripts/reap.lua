-- Checks a scope whose job may be lost, and frees it on request; never the scope of a live job.
-- ARGV scope, retention ms, free ("1" or ""). Returns {result, now, record}: none, live, expired, reaped.
local scope, retention = ARGV[1], ARGV[2]
local id = read('GET', index_of(scope))
if id == false then
  return {'none', now, {}}
end
if id == nil then
  -- the index is of another type: the next submission overwrites it
  if ARGV[3] ~= '' then
    redis.call('DEL', index_of(scope))
  end
  return {ARGV[3] == '' and 'expired' or 'reaped', now, {'status', 'unreadable'}}
end
local found = load_job(id)
if found.is_held then
  return reply('live', id)
end
if ARGV[3] == '' then
  return reply('expired', id)
end
if ACTIVE[found.status] then
  close(id, scope, 'lost', retention)
else
  -- its record is deleted, or cannot be read
  redis.call('DEL', index_of(scope))
end
return reply('reaped', id)
