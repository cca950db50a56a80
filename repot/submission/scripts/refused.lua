-- ARGV limit. Returns {refusals, newest first; counts; costs; names of those that cannot be read}.
local unreadable = {}

local function all_of(name, command, ...)
  local found = read(command, base .. ':' .. name, ...)
  if found == nil then
    table.insert(unreadable, name)
  end
  return found or {}
end

return {all_of('refused', 'XREVRANGE', '+', '-', 'COUNT', ARGV[1]), all_of('counts', 'HGETALL'),
  all_of('costs', 'HGETALL'), unreadable}
