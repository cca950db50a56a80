-- A run has ended. The index is cleared only if it still names this job; safe to send twice.
-- ARGV id, owner, status (succeeded, failed, queued), error type, error, hold ms (of queued), kept ms,
-- hop: how often it has been replaced by then
-- Returns {status, now, {}}: what is on record now.
local id, owner, status, kept = ARGV[1], ARGV[2], ARGV[3], ARGV[7]
local found = look(id)
-- one that was taken for lost has ended after all; one that was cancelled stays so
if found.owner ~= owner or (found.status ~= 'running' and found.status ~= 'lost') then
  return {found.status, now, {}}
end
if status == 'queued' then
  if found.status == 'running' then
    hold(id, found.scope, ARGV[6], kept)
    redis.call('HSET', record_of(id), 'status', 'queued', 'hop', ARGV[8])
  end
  return {look(id).status, now, {}}
end
close(id, found.scope, status, kept)
redis.call('HSET', record_of(id), 'error_type', ARGV[4], 'error', ARGV[5])
return {status, now, {}}
