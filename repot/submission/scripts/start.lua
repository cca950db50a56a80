-- Starts an attempt; safe to repeat, because the owner is new for each attempt.
-- ARGV id, scope, owner, lease ms, retention ms, task, max audit entries,
--      replacements: how often the task has replaced itself, grace
-- Returns {result, now, record}. started; ended: it must not run (cancelled, unsent, superseded, or replaced);
--         succeeded: it has succeeded; busy: another attempt is live, or a run of another job may be;
--         superseded: another job holds the scope.
local id, scope, owner, lease, retention, task = unpack(ARGV, 1, 6)
grace = tonumber(ARGV[9])
local replacements, found = tonumber(ARGV[8]), load_job(id)
if found.status == 'running' and found.owner == owner then
  -- the answer to the first attempt was lost
  return reply('started', id)
end
if found.status == 'cancelled' or found.status == 'unsent' or found.status == 'superseded' then
  return reply('ended', id)
end
if replacements < found.replacements then
  -- a copy of a message whose run has already sent its replacement
  return reply('ended', id)
end
if found.status == 'succeeded' then
  return reply('succeeded', id)
end
-- sending its replacement is the last step of a run: the replacement need not wait for the end of the run
if found.status == 'running' and found.is_held and replacements == found.replacements then
  return reply('busy', id)
end
if found.status == '' then
  -- the record has expired, or the store lost it: the message is still an accepted job
  redis.call('DEL', record_of(id))
  redis.call('HSET', record_of(id), 'id', id, 'scope', scope, 'name', '', 'payload', '', 'key', '', 'task', task,
    'status', 'queued', 'generation', write('INCR', base .. ':generation:' .. scope), 'created_at', now)
end
local active = active_job_of(scope, retention, id)
if active and not load_job(active).has_lease then
  return reply('busy', id)
end
if active then
  close(id, scope, 'superseded', retention)
  redis.call('HSET', record_of(id), 'successor', active)
  audit('superseded', found.name, id, active, load_job(active).status, ARGV[7], retention)
  return reply('superseded', id)
end
redis.call('HDEL', record_of(id), 'ended_at', 'successor', 'error_type', 'error')
redis.call('HSET', record_of(id), 'status', 'running', 'owner', owner, 'replacements', replacements)
write('HINCRBY', record_of(id), 'attempts', 1)
redis.call('SET', index_of(scope), id)
extend_lease(id, scope, lease, retention)
return reply('started', id)
