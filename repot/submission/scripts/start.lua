-- A worker has the message; safe to send twice, as the owner is new for each run.
-- ARGV id, scope, owner, lease ms, kept ms, task, most audited, hop: how often the task has replaced itself
-- Returns {verdict, now, record}: started; over: it must not run (cancelled, unsent, superseded, or replaced);
--         done: it has succeeded; busy: another run of it lives; superseded: another job has the scope.
local id, scope, owner, lease, kept, task = unpack(ARGV, 1, 6)
local hop, found = tonumber(ARGV[8]), look(id)
if found.status == 'running' and found.owner == owner then
  -- the answer to the first try was lost
  return told('started', id)
end
if found.status == 'cancelled' or found.status == 'unsent' or found.status == 'superseded' then
  return told('over', id)
end
if hop < found.hop then
  -- a copy of a message whose run has sent its replacement
  return told('over', id)
end
if found.status == 'succeeded' then
  return told('done', id)
end
-- to send its replacement is the last thing that a run does: what comes then need not wait until it has ended
if found.status == 'running' and found.holds and hop == found.hop then
  return told('busy', id)
end
if found.status == '' then
  -- its record is forgotten, or the store lost it: the message still is a job that was accepted
  redis.call('DEL', record_of(id))
  redis.call('HSET', record_of(id), 'id', id, 'scope', scope, 'name', '', 'payload', '', 'key', '', 'task', task,
    'status', 'queued', 'generation', write('INCR', base .. ':generation:' .. scope), 'created', now)
end
local active = holder_of(scope, kept, id)
if active then
  close(id, scope, 'superseded', kept)
  redis.call('HSET', record_of(id), 'successor', active)
  audit('superseded', found.name, id, active, look(active).status, ARGV[7], kept)
  return told('superseded', id)
end
redis.call('HDEL', record_of(id), 'ended', 'successor', 'error_type', 'error')
redis.call('HSET', record_of(id), 'status', 'running', 'owner', owner, 'hop', hop)
write('HINCRBY', record_of(id), 'attempts', 1)
redis.call('SET', index_of(scope), id)
hold(id, scope, lease, kept)
return told('started', id)
