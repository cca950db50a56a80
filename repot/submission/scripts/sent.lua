-- The message is on the broker: the scope is held until a worker takes it, or the wait is over; safe to send twice.
-- ARGV id, lease ms, kept ms. Returns {status, now, record}.
local id = ARGV[1]
local found = look(id)
if found.status == 'accepted' then
  hold(id, found.scope, ARGV[2], ARGV[3])
  redis.call('HSET', record_of(id), 'status', 'queued')
end
return told(look(id).status, id)
