-- Holds on to the scope, and writes down how far the run is; nothing if it is not this owner's any more.
-- ARGV id, owner, lease ms, kept ms, then fields and values of progress. Returns {status, now, {}}: `running` if held.
local id, owner, lease, kept = unpack(ARGV, 1, 4)
local found = look(id)
if found.status == 'running' and (found.owner ~= owner or text_of(index_of(found.scope)) ~= id) then
  return {'lost', now, {}}
end
if found.status == 'running' then
  hold(id, found.scope, lease, kept)
  if #ARGV > 4 then
    redis.call('HSET', record_of(id), unpack(ARGV, 5))
  end
end
return {found.status, now, {}}
