-- Extends the lease on the scope, and records progress; changes nothing if another attempt owns the job.
-- ARGV id, owner, lease ms, retention ms, then fields and values of progress. Returns {status, now, {}}: `running` if the lease is held.
local id, owner, lease, retention = unpack(ARGV, 1, 4)
local found = load_job(id)
if found.status == 'running' and (found.owner ~= owner or text_of(index_of(found.scope)) ~= id) then
  return {'lost', now, {}}
end
if found.status == 'running' then
  extend_lease(id, found.scope, lease, retention)
  if #ARGV > 4 then
    redis.call('HSET', record_of(id), unpack(ARGV, 5))
  end
end
return {found.status, now, {}}
