-- Cancels a job that has not ended, or may come back after it was lost; safe to send twice.
-- ARGV id, kept ms. Returns {verdict, now, record}: unknown, cancelled, or the status that it has ended with.
local id = ARGV[1]
local found = look(id)
if found.status == '' then
  return {'unknown', now, {}}
end
if HOLDING[found.status] or found.status == 'lost' then
  close(id, found.scope, 'cancelled', ARGV[2])
end
return told(look(id).status, id)
