-- The message is on the broker: holds the scope until a worker starts the job, or the lease expires; safe to repeat.
-- ARGV id, lease ms, retention ms. Returns {status, now, record}.
local id = ARGV[1]
local found = load_job(id)
if found.status == 'accepted' then
  extend_lease(id, found.scope, ARGV[2], ARGV[3])
  redis.call('HSET', record_of(id), 'status', 'queued')
end
return reply(load_job(id).status, id)
