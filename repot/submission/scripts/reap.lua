-- Looks at a scope whose job may be lost, and frees it if asked to; never that of a live one.
-- ARGV scope, kept ms, free ("1" or ""). Returns {verdict, now, record}: none, live, stuck, reaped.
local scope, kept = ARGV[1], ARGV[2]
local id = read('GET', index_of(scope))
if id == false then
  return {'none', now, {}}
end
if id == nil then
  -- no text at the index's name: the next submission writes over it
  if ARGV[3] ~= '' then
    redis.call('DEL', index_of(scope))
  end
  return {ARGV[3] == '' and 'stuck' or 'reaped', now, {'status', 'unreadable'}}
end
local found = look(id)
if found.holds then
  return told('live', id)
end
if ARGV[3] == '' then
  return told('stuck', id)
end
if HOLDING[found.status] then
  close(id, scope, 'lost', kept)
else
  -- its record is gone, or cannot be read
  redis.call('DEL', index_of(scope))
end
return told('reaped', id)
