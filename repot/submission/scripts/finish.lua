-- Ends an attempt. Clears the index only if it still names this job; safe to repeat.
-- ARGV id, owner, status (succeeded, failed, queued), error type, error, hold ms (of queued), retention ms,
-- replacements: how often the task has replaced itself
-- Returns {status, now, {}}: the status on record.
local id, owner, status, retention = ARGV[1], ARGV[2], ARGV[3], ARGV[7]
local found = load_job(id)
-- a job that was marked lost has ended after all; a cancelled one stays cancelled
if found.owner ~= owner or (found.status ~= 'running' and found.status ~= 'lost') then
  return {found.status, now, {}}
end
if status == 'queued' then
  if found.status == 'running' then
    extend_lease(id, found.scope, ARGV[6], retention)
    redis.call('HSET', record_of(id), 'status', 'queued', 'replacements', ARGV[8])
  end
  return {load_job(id).status, now, {}}
end
close(id, found.scope, status, retention)
redis.call('HSET', record_of(id), 'error_type', ARGV[4], 'error', ARGV[5])
return {status, now, {}}
