-- Looks up what the caller may do; runs none of it.
-- ARGV pairs of a command and a key. Returns the pairs that are refused; 'unknown' where the server does not tell.
if not redis.acl_check_cmd then
  return 'unknown'
end
-- Commands without a key. The others get it in the place of every argument: some take several keys.
local KEYLESS = {time = {}, scan = {'0'}, eval = {'return 1', '0'}}
local missing = {}
for place = 1, #ARGV, 2 do
  local command, key = ARGV[place], ARGV[place + 1]
  if not redis.acl_check_cmd(command, unpack(KEYLESS[command] or {key, key, key})) then
    table.insert(missing, command)
    table.insert(missing, key)
  end
end
return missing
