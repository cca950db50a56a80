-- Frees the scope and the idempotency key after a failed publish, unless a worker has the message nevertheless.
-- ARGV id, error type, error, retention ms. Returns {status, now, record}; safe to repeat.
local id = ARGV[1]
local found = load_job(id)
if found.status == 'accepted' then
  close(id, found.scope, 'unsent', ARGV[4])
  redis.call('HSET', record_of(id), 'error_type', ARGV[2], 'error', ARGV[3])
end
return reply(load_job(id).status, id)
