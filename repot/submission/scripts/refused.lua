-- ARGV how many. Returns {audit, newest first; counts; costs; which of them cannot be read}.
local unreadable = {}

local function read(what, command, ...)
  local found = redis.pcall(command, base .. ':' .. what, ...)
  if failed(found) then
    table.insert(unreadable, what)
    return {}
  end
  return found
end

return {read('refused', 'XREVRANGE', '+', '-', 'COUNT', ARGV[1]), read('counts', 'HGETALL'), read('costs', 'HGETALL'),
  unreadable}
