-- Cancels a job that has not ended, or is lost but may be delivered again; safe to repeat.
-- ARGV id, retention ms. Returns {result, now, record}: unknown, cancelled, or the final status.
local id = ARGV[1]
local found = load_job(id)
if found.status == '' then
  return {'unknown', now, {}}
end
if ACTIVE[found.status] or found.status == 'lost' then
  close(id, found.scope, 'cancelled', ARGV[2])
end
return reply(load_job(id).status, id)
