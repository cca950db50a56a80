-- ARGV how many. Returns {audit, newest first; counts; costs; which of them cannot be read}.
local unreadable = {}

local function all_of(what, command, ...)
  local found = read(command, base .. ':' .. what, ...)
  if found == nil then
    table.insert(unreadable, what)
  end
  return found or {}
end

return {all_of('refused', 'XREVRANGE', '+', '-', 'COUNT', ARGV[1]), all_of('counts', 'HGETALL'),
  all_of('costs', 'HGETALL'), unreadable}
